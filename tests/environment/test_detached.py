"""Interfaces of a detached sandbox outlive the process that served them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seer.environment import ScopedSandbox
from seer.errors import CallLostError
from seer.rpc import Budget

pytestmark = pytest.mark.full

INTERFACE = '''
import os
print("loading", flush=True)
counts = []

@expose
def count(word: str) -> int:
    """Count words."""
    print("a word of output that nobody reads " * 100, flush=True)
    counts.append(word)
    return len(counts)

@expose
def leave() -> None:
    """End the interface's process."""
    os._exit(3)
'''

SERVE = """
import sys
from seer.environment import SandboxConfig, ScopedSandbox
from seer.rpc import Budget
scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local", timeout=120)).start()
tools = scoped.serve(
    sys.argv[1],
    name="tools",
    budget=Budget(calls=1000),
    function_budgets={"count": Budget(calls=900)},
    caller_budget=Budget(calls=800),
).connect()
assert tools.count("first") == 1
scoped.detach()
assert tools.count("second") == 2
print(scoped.sandbox_id)
"""


def again(scoped: ScopedSandbox, file: Path) -> Any:
    """The interface that keeps running; other options would be refused."""
    return scoped.serve(
        file,
        name="tools",
        budget=Budget(calls=1000),
        function_budgets={"count": Budget(calls=900)},
        caller_budget=Budget(calls=800),
    ).connect()


@pytest.fixture
def left_behind(tmp_path: Path) -> tuple[str, Path]:
    """A sandbox whose controller has ended, and its interface file."""
    file = tmp_path / "interface.py"
    file.write_text(INTERFACE)
    made = subprocess.run(
        [sys.executable, "-c", SERVE, str(file)], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.split()[-1], file


def test_another_process_uses_an_interface_that_was_left_running(
    left_behind: tuple[str, Path],
) -> None:
    sandbox_id, file = left_behind
    with ScopedSandbox.from_id(sandbox_id, provider="local") as scoped:
        assert scoped.served == ("tools",)
        tools = again(scoped, file)
        assert tools.budget()["caller"]["limit"] == {"calls": 800}
        # The same process as before: it has counted all calls, and output that nobody reads does
        # not block it.
        for expected in range(3, 60):
            assert tools.count("more") == expected


def test_an_interface_that_died_meanwhile_can_be_served_again(
    left_behind: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    sandbox_id, file = left_behind
    scoped = ScopedSandbox.from_id(sandbox_id, provider="local")
    try:
        tools = again(scoped, file)
        with pytest.raises(CallLostError):
            tools.leave()
        scoped.detach()
        scoped = ScopedSandbox.from_id(sandbox_id, provider="local")
        assert scoped.served == ()
        assert "tools is no longer served" in caplog.text
        assert scoped.serve(file, name="tools").connect().count("anew") == 1
    finally:
        scoped.terminate()
