"""Handles of models and repositories as the original spells them."""

from dataclasses import asdict

import seer.environment
from src._old import without_meaning


class ModelHandle(seer.environment.ModelHandle):
    """A `seer.environment.ModelHandle` with the original's spellings."""

    base_model: str | None
    """The name of an adapter's base model."""

    @classmethod
    def of(
        cls, handle: seer.environment.ModelHandle, config: seer.environment.ModelConfig
    ) -> "ModelHandle":
        """The same handle, with the original's spellings."""
        made = cls(**asdict(handle))
        object.__setattr__(made, "base_model", None if handle.hidden else config.base_model)
        return made

    @property
    def volume_path(self) -> str:
        """The model's folder, as programs in the sandbox see it."""
        return self.path

    @property
    def is_peft(self) -> bool:
        """Whether the model is an adapter."""
        return self.base_path is not None

    @property
    def base_model_path(self) -> str | None:
        """The folder of an adapter's base model; None for other models."""
        return self.base_path


class RepoHandle(seer.environment.RepoHandle):
    """A `seer.environment.RepoHandle` with the original's spellings."""

    @property
    def local_path(self) -> str:
        """The checkout's folder, as programs in the sandbox see it."""
        return self.path

    def __getattr__(self, name: str) -> None:
        """`container_*` is None, because repositories have no containers in Seer."""
        if not name.startswith("container_"):
            raise AttributeError(name)
        without_meaning("RepoHandle", {name: True})
