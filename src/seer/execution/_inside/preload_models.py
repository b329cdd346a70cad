"""Load models into variables of a notebook. Runs in the session's machine, under its packages."""

import json
from typing import Any


def load_models(wanted: str) -> dict[str, Any]:
    """Load each model and its tokenizer.

    Args:
        wanted: JSON: a list of `{"name": variable, "tokenizer": variable, "path": folder,
            "base": folder or null, "known_as": the model's name, or what a hidden one is called}`.

    Returns:
        The variables by name.
    """
    import transformers

    library: Any = transformers  # its type hints are too loose to check
    variables: dict[str, Any] = {}
    for entry in json.loads(wanted):
        base = entry["base"] or entry["path"]
        model: Any = library.AutoModelForCausalLM.from_pretrained(base, **_placement())
        if entry["base"]:
            import peft

            adapters: Any = peft
            model = adapters.PeftModel.from_pretrained(model, entry["path"])
        elif "/" in entry["known_as"] and not entry["known_as"].startswith(("/", "./", "~")):
            # Its hub id, which libraries use to find a model's settings.
            model.config._name_or_path = entry["known_as"]
        variables[entry["name"]] = model.eval()
        variables[entry["tokenizer"]] = library.AutoTokenizer.from_pretrained(base)
    return variables


def _placement() -> dict[str, Any]:
    """Options that put the model on the GPU, if there is one and accelerate is installed."""
    import importlib.util

    import torch

    if torch.cuda.is_available() and importlib.util.find_spec("accelerate"):
        return {"device_map": "auto", "dtype": "auto"}
    return {"dtype": "auto"}
