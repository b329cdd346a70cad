"""An agent that stops its machine's steward cannot block the controller."""

import threading
from pathlib import Path

import pytest

from seer.execution import create_local_session

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

STOP_ALL = """
import os, signal
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    if pid not in (1, os.getpid()):
        os.kill(pid, signal.SIGSTOP)
"""


def test_a_session_whose_steward_was_stopped_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.providers.client._steward._GRACE", 1.0)
    session = create_local_session(workspace_dir=tmp_path / "work")
    session.exec(STOP_ALL)
    closed = threading.Event()

    def close() -> None:
        session.close()
        closed.set()

    threading.Thread(target=close, daemon=True).start()
    assert closed.wait(60), "close() hangs"
