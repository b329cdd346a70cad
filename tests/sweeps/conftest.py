"""A small experiment, and the places where its cells run."""

import importlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from seer.sweeps import Executor, Local, Ray
from tests.support.ray_cluster import RayCluster

PROGRAM = """
import os, sys, time
from pathlib import Path
from typing import Any
from seer.sweeps import current_cell, report

cell = current_cell()
with open("began.txt", "a") as file:
    file.write(cell.id + chr(10))
if cell.tools == "broken":
    sys.exit("the experiment is wrong, not " + os.environ.get("LAB_KEY", "the key"))
if cell.tools == "killed":
    os.kill(os.getpid(), 9)
if cell.tools == "slow":
    time.sleep(600)
if cell.tools == "gated":
    Path("gate-" + str(os.getpid())).touch()
    while not Path("open").exists():
        time.sleep(0.02)
if cell.tools == "agent":
    import asyncio
    from seer.harness import Scripted, Step, run_agent

    async def look():
        script = Scripted([Step(text="nothing here", usage={"input_tokens": 7})])
        async for event in run_agent(prompt="Look.", mcp_config={}, provider=script):
            pass

    asyncio.run(look())
report(score=float((cell.seed + len(cell.agent or "")) % 2), seed=cell.seed)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An experiment whose tool sets decide its outcome."""
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "main.py").write_text(PROGRAM)
    return folder / "main.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[RayCluster]:
    """Three nodes, the last of which one test may kill. Sweeps in this process find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("nodes")))
        # Ray starts a worker per CPU for each process that connects; one is enough.
        with RayCluster(nodes=3, cpus=1) as running:
            patch.delenv("XDG_CACHE_HOME")
            for name, value in running.environment.items():
                patch.setenv(name, value)
            # Not earlier, because Ray reads its token when it is imported. All sweeps share one
            # connection: a sweep with its own has to wait for new workers.
            ray: Any = importlib.import_module("ray")
            ray.init(running.address, log_to_driver=False, logging_level="ERROR")
            try:
                yield running
            finally:
                ray.shutdown()


_ON_RAY = pytest.param("ray", marks=pytest.mark.xdist_group("ray"))


@pytest.fixture(params=["here", _ON_RAY])
def executor(request: pytest.FixtureRequest) -> Executor:
    """Each executor of cells."""
    if request.param == "here":
        return Local()
    request.getfixturevalue("cluster")
    return Ray(cpus=0.25)
