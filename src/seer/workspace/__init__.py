"""Workspaces: what an agent can import and read, as frozen data, and the installer for it."""

from seer.workspace._gate import Gate
from seer.workspace._library import Library
from seer.workspace._skill import Skill
from seer.workspace._workspace import Workspace

__all__ = [
    "Gate",
    "Library",
    "Skill",
    "Workspace",
]
