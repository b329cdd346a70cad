"""The sessions that are open in this process."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seer.execution._session import Session

_open: dict[str, Session] = {}


def add_session(session: Session) -> None:
    """Note a session that has just been opened."""
    if not _open:
        atexit.unregister(_tidy_up)
        atexit.register(_tidy_up)
    _open[session.session_id] = session


def drop_session(session: Session) -> None:
    """Forget a session that closes."""
    _open.pop(session.session_id, None)


def open_sessions() -> list[Session]:
    """All sessions of this process that are open, oldest first.

    One that was made in an event loop which has been closed since does not count: the program
    that made it has ended.
    """
    return [session for session in _open.values() if not session.is_orphaned]


# The parent's sessions are the parent's to close.
os.register_at_fork(after_in_child=_open.clear)


def _tidy_up() -> None:
    """At the end of the process: what runs ends by itself, what lies on disk does not."""
    for session in _open.values():
        session.abandon()
