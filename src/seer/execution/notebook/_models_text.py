"""What an agent in a notebook is told about the models of its sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from seer.environment import ModelHandle


def describe_models(models: Sequence[ModelHandle], *, preloaded: bool) -> str:
    """A paragraph about the models, empty without any; hidden ones are not named."""
    lines: list[str] = []
    for model in models:
        name = "a model whose name is withheld" if model.hidden else model.name
        if preloaded:
            tokenizer = tokenizer_name(model.var_name)
            lines.append(f"- `{model.var_name}` and `{tokenizer}`: {name}, already loaded")
        else:
            lines.append(f"- {name}, in `{model.path}`")
    return "\n\nModels:\n" + "\n".join(lines) if lines else ""


def tokenizer_name(var_name: str) -> str:
    """The variable that holds the tokenizer of the model in `var_name`."""
    if var_name == "model" or var_name.startswith("model_"):
        return var_name.replace("model", "tokenizer", 1)
    return f"{var_name}_tokenizer"
