"""The names under which a sandbox shows its models. Pure functions of the configured names."""

import re
from pathlib import Path


def is_local_model(name: str) -> bool:
    """Whether a model's name is a folder of this machine."""
    return name.startswith(("/", "./", "../", "~")) or name in (".", "..") or Path(name).is_dir()


def model_env_name(name: str) -> str:
    """The variable that holds a model's path: `MODEL_GOOGLE_GEMMA_2_9B_PATH`."""
    return f"MODEL_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}_PATH"


def model_slug(name: str) -> str:
    """The folder name of a model that is not hidden: `google--gemma-2-9b`."""
    if is_local_model(name):
        name = Path(name).expanduser().resolve().name
    return re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("/", "--")).lstrip(".") or "model"


def hub_cache_name(name: str) -> str:
    """The folder of a model in the hub's cache: `models--google--gemma-2-9b`."""
    return f"models--{name.replace('/', '--')}"
