"""`seer.workspace`, with the original's spellings of `Library`, `Skill` and `Workspace`."""

import seer.workspace
from seer.workspace import *  # noqa: F403
from src.workspace.library import Library
from src.workspace.skill import Skill
from src.workspace.workspace import Workspace

__all__ = seer.workspace.__all__  # pyright: ignore[reportUnsupportedDunderAll]
_ = Library, Skill, Workspace
