"""What an agent can import and read: a frozen description, and one installer for it."""

from seer.workspace._gate import Dependent, Gate, GateSocket
from seer.workspace._install import FileApi, InstallReport, install_files, install_libraries
from seer.workspace._library import Library
from seer.workspace._skill import Skill
from seer.workspace._workspace import Workspace

__all__ = [
    "Dependent",
    "FileApi",
    "Gate",
    "GateSocket",
    "InstallReport",
    "Library",
    "Skill",
    "Workspace",
    "install_files",
    "install_libraries",
]
