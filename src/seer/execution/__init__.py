"""Sessions: where an agent's code runs. They know nothing about tool protocols or vendors."""

from seer.execution._pool import Pool
from seer.execution._result import ExecutionError, ExecutionResult, Image, RichOutput, StreamText
from seer.execution._session import Session, open_sessions
from seer.execution.kernel._session import LocalSession, acreate_local_session, create_local_session
from seer.execution.notebook._edits import CellInfo
from seer.execution.notebook._session import (
    NotebookSession,
    acreate_notebook_session,
    create_notebook_session,
)
from seer.execution.shell._session import CliSession, acreate_cli_session, create_cli_session

__all__ = [
    "CellInfo",
    "CliSession",
    "ExecutionError",
    "ExecutionResult",
    "Image",
    "LocalSession",
    "NotebookSession",
    "Pool",
    "RichOutput",
    "Session",
    "StreamText",
    "acreate_cli_session",
    "acreate_local_session",
    "acreate_notebook_session",
    "create_cli_session",
    "create_local_session",
    "create_notebook_session",
    "open_sessions",
]
