"""`seer.execution`, with the original's spellings of sessions."""

import seer.execution
from seer.execution import *  # noqa: F403
from src.execution.sessions import (
    CLISession,
    LocalNotebookSession,
    LocalSession,
    NotebookSession,
    SessionBase,
    create_cli_session,
    create_local_notebook_session,
    create_local_session,
    create_notebook_session,
)

CliSession = CLISession

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *seer.execution.__all__,
    "CLISession",
    "LocalNotebookSession",
    "SessionBase",
    "create_local_notebook_session",
]
_ = (
    LocalSession,
    NotebookSession,
    create_cli_session,
    create_local_session,
    create_notebook_session,
)
