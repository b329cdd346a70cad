"""Handles of a started sandbox's models and repositories."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelHandle:
    """A model in a running sandbox."""

    name: str
    """The name from the configuration; for a hidden model, what agents see: `model_0`."""
    path: str
    """Its folder, as programs in the sandbox see it."""
    var_name: str
    """Its variable in a notebook."""
    env_name: str
    """The environment variable that holds `path`."""
    hidden: bool = False
    base_path: str | None = None
    """For an adapter: the folder of its base model."""


@dataclass(frozen=True, kw_only=True)
class RepoHandle:
    """A repository in a running sandbox."""

    name: str
    path: str
    """The checkout's folder, as programs in the sandbox see it."""
    url: str
    ref: str | None
    """The requested branch, tag or commit; None for the default branch."""
    commit: str
    """The commit that `ref` named when the sandbox started."""
