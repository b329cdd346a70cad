"""Which packages a run used, as far as they can matter for its result."""

import functools

from seer import __version__

_NAMED = (
    "accelerate",
    "claude-agent-sdk",
    "google-genai",
    "mcp",
    "nnsight",
    "numpy",
    "openai",
    "peft",
    "pydantic-ai-slim",
    "safetensors",
    "torch",
    "transformer-lens",
    "transformers",
)


@functools.cache
def package_versions() -> dict[str, str]:
    """The versions of Seer, and of the packages above that are installed beside it."""
    # Imported late: it takes a good part of the time that importing this package does.
    from importlib.metadata import PackageNotFoundError, version

    found = {"seer-interp": __version__}
    for name in _NAMED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
