"""A module of the original; what it held is in `src.execution`."""

from src.execution.sessions import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
