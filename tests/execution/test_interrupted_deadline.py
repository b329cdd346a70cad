"""An interrupt of a session leaves no deadline behind; `tests/rpc` has all moments of one."""

from pathlib import Path
from typing import Any

import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import acreate_local_session
from seer.workspace import Workspace

pytestmark = pytest.mark.full

INTERRUPTED = """
import os, signal, sys
import tools
from _seer_gate import deadline

def interrupt(frame, event, arg):
    names = {{"call": frame.f_code.co_name, "c_call": getattr(arg, "__name__", "")}}
    if names.get(event) == "{method}":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(interrupt)
with deadline(0.2):
    pass
reached = True
"""
LATER = """
import time

time.sleep(0.3)
print("reached" in globals(), tools.double(4))
"""


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
async def test_an_interrupt_at_a_deadline_does_not_stop_later_calls(
    tmp_path: Path, method: str
) -> None:
    file = tmp_path / "tools.py"
    file.write_text('@expose\ndef double(x: int) -> int:\n    """Twice x."""\n    return 2 * x\n')
    async with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        library: Any = await scoped.aserve(file)
        workspace = Workspace(libraries=[library])
        async with await acreate_local_session(workspace, workspace_dir=tmp_path / "work") as here:
            interrupted = await here.aexec(INTERRUPTED.format(method=method))
            assert interrupted.error is not None
            assert interrupted.error.name == "KeyboardInterrupt"
            assert (await here.aexec(LATER)).text.strip() == "False 8"
