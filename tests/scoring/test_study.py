"""A study ends its session and its sandbox whatever the agent does, without blocking the loop."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from seer.environment import ModelConfig
from seer.scoring import _study
from seer.scoring import study as run_study


class Made:
    """Stands for the sandbox and for the session; notes what is done to it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name

    async def astart(self) -> None:
        self.log.append(f"start {self.name}")

    async def aserve(self, *_: object, **__: object) -> str:
        return "tools"

    async def aterminate(self) -> None:
        self.log.append(f"end {self.name}")

    async def __aenter__(self) -> "Made":
        await self.astart()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aterminate()


async def test_a_failing_agent_leaves_no_session_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log: list[str] = []

    async def session(**_: object) -> Made:
        return Made(log, "session")

    async def fail(**_: object) -> AsyncIterator[Any]:
        raise RuntimeError("the vendor is gone")
        yield

    def sandbox(_: object) -> Made:
        return Made(log, "sandbox")

    def workspace(**_: object) -> None:
        return None

    monkeypatch.setattr(_study, "ScopedSandbox", sandbox)
    monkeypatch.setattr(_study, "Workspace", workspace)
    monkeypatch.setattr(_study, "acreate_local_session", session)
    monkeypatch.setattr(_study, "run_agent", fail)
    with pytest.raises(RuntimeError, match="vendor"):
        await run_study(ModelConfig("a/b"), interface=tmp_path / "tools.py", task="look")
    assert log == ["start sandbox", "start session", "end session", "end sandbox"]
