"""Workspaces: what an agent can import and read, as frozen data, and the installer for it."""

from seer.workspace._gate import Dependent, Gate, GateSocket
from seer.workspace._install import install_files, install_libraries
from seer.workspace._library import Library
from seer.workspace._skill import Skill
from seer.workspace._workspace import Workspace

__all__ = [
    "Dependent",
    "Gate",
    "GateSocket",
    "Library",
    "Skill",
    "Workspace",
    "install_files",
    "install_libraries",
]
