"""A module of the original; its content is in `src.execution`."""

from src.execution.sessions import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
