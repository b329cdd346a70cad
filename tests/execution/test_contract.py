"""Local, notebook and CLI sessions pass the contract, in each jail that works here."""

from pathlib import Path

import pytest

from seer.execution import (
    Session,
    _turns,  # pyright: ignore[reportPrivateUsage]
    acreate_cli_session,
    acreate_local_session,
    acreate_notebook_session,
)
from seer.isolation import BackendName, backends
from seer.testing.session_contract import SessionContract
from seer.workspace import Workspace

pytestmark = pytest.mark.full

needs_landlock = pytest.mark.skipif(
    backends()["landlock"] is not None, reason=str(backends()["landlock"])
)


@pytest.fixture(autouse=True)
def short_grace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that ignores an interrupt is killed sooner than usual."""
    if "does_not_heed" in request.node.name:
        monkeypatch.setattr(_turns, "GRACE", 1.0)


class PythonSessions(SessionContract):
    """The actions of the contract, as Python code."""

    isolation: BackendName = "bubblewrap"

    def say(self, text: str) -> str:
        return f"print('{text}', flush=True)"

    def say_error(self, text: str) -> str:
        return f"import sys; print('{text}', file=sys.stderr)"

    def remember(self, name: str, text: str) -> str:
        return f"{name} = '{text}'"

    def recall(self, name: str) -> str:
        return f"print(globals().get('{name}', ''))"

    def fail(self) -> str:
        return "1 / 0"

    def sleep(self, seconds: float) -> str:
        return f"import time; time.sleep({seconds})"

    def spin(self) -> str:
        return "while True: pass"

    def deaf(self) -> str:
        return (
            "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "while True:\n    time.sleep(1)"
        )

    def count(self, lines: int) -> str:
        return f"for n in range({lines}):\n    print('line', n)"

    def use_library(self) -> str:
        return "import helpers; print(helpers.double(21))"

    def write(self, path: str, text: str) -> str:
        return f"_ = open('{path}', 'w').write('{text}')"

    def read(self, path: str) -> str:
        return f"print(open('{path}').read())"


class TestLocalSession(PythonSessions):
    """The local session keeps the contract."""

    async def open(self, workspace: Workspace, folder: Path) -> Session:
        return await acreate_local_session(workspace, folder / "work", isolation=self.isolation)


@needs_landlock
class TestLocalSessionInLandlock(TestLocalSession):
    """The same in the other jail."""

    isolation: BackendName = "landlock"


class TestNotebookSession(PythonSessions):
    """The notebook session keeps the contract."""

    async def open(self, workspace: Workspace, folder: Path) -> Session:
        return await acreate_notebook_session(
            workspace=workspace,
            notebook_dir=folder / "notebook",
            workspace_dir=folder / "work",
            isolation=self.isolation,
        )


class TestCliSession(SessionContract):
    """The cli session keeps the contract."""

    isolation: BackendName = "bubblewrap"

    async def open(self, workspace: Workspace, folder: Path) -> Session:
        return await acreate_cli_session(
            workspace=workspace, workspace_dir=folder / "work", isolation=self.isolation
        )

    def say(self, text: str) -> str:
        return f"echo '{text}'"

    def say_error(self, text: str) -> str:
        return f"echo '{text}' >&2"

    def remember(self, name: str, text: str) -> str:
        return f"{name}='{text}'"

    def recall(self, name: str) -> str:
        return f'echo "${name}"'

    def fail(self) -> str:
        return "false"

    def sleep(self, seconds: float) -> str:
        return f"sleep {seconds}"

    def spin(self) -> str:
        return "while :; do :; done"

    def deaf(self) -> str:
        return "trap '' INT; while :; do sleep 1; done"

    def count(self, lines: int) -> str:
        return f"for ((n = 0; n < {lines}; n++)); do echo line $n; done"

    def use_library(self) -> str:
        return "python3 -c 'import helpers; print(helpers.double(21))'"

    def write(self, path: str, text: str) -> str:
        return f"printf '{text}' > {path}"

    def read(self, path: str) -> str:
        return f"cat {path}"


@needs_landlock
class TestCliSessionInLandlock(TestCliSession):
    """The same in the other jail."""

    isolation: BackendName = "landlock"
