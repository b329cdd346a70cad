"""What an agent's calls over MCP can store on the machine that serves the interface."""

import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcp import Client, StdioServerParameters

from seer.environment import SandboxConfig, ScopedSandbox
from seer.tools import _functions, _sets

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = '''
from collections.abc import Iterator
import numpy as np

@expose
def blocks(count: int) -> Iterator[dict]:
    """Blocks, without end if so many are asked for."""
    for _ in range(count):
        yield {"block": ["x" * 10_000]}

@expose
def noise(size: int) -> np.ndarray:
    """Numbers."""
    return np.random.rand(size)
'''


class _Usage(NamedTuple):
    free: int


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    file = tmp_path_factory.mktemp("interface") / "lab.py"
    file.write_text(INTERFACE)
    settings = SandboxConfig(gpu=None, provider="local", python_packages=["numpy"])
    with ScopedSandbox(settings) as sandbox:
        served: Any = sandbox.serve(file, "mcp", "lab")
        yield served["lab"]


async def ask(config: dict[str, Any], tool: str, **arguments: Any) -> str:
    server = StdioServerParameters(command=config["command"], args=config["args"], env={})
    async with Client(server) as client:
        return str(await client.call_tool(tool, arguments))


async def test_a_stream_without_end_fills_the_memory_of_the_server(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_functions, "_MOST_BYTES", 1_000_000)
    said = await ask(config, "blocks", count=10**9)
    assert "was stopped after 97 items" in said and "is_error=True" in said
    assert "is_error=True" not in await ask(config, "blocks", count=3)


async def test_results_that_are_saved_fill_the_disk_of_the_host(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    room = [_sets.SPARE + 100_000]

    def usage(_: object) -> _Usage:
        return _Usage(free=room[0])

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert "saved as" in await ask(config, "noise", size=10_000)
    room[0] -= 80_000
    said = await ask(config, "noise", size=10_000)
    assert "is not saved" in said and "is_error=True" in said
    assert len(list((tmp_path / "outputs" / "results").iterdir())) == 1
