"""A host that lacks a resource names it, as a typed error and as one line on the command line.

It tests internal helpers that everything in Seer uses.
"""

import asyncio
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seer._paths import state_dir
from seer._sync import on_loop, run_sync
from seer.errors import HostResourceError, RecordError, SeerError
from seer.harness import Agent, AgentContext, AgentRequest, run_agent
from seer.runs import open_run


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EROFS])
def test_what_the_host_lacks_is_a_typed_error(number: int) -> None:
    async def lacking() -> None:
        raise OSError(number, os.strerror(number), "/some/file")

    for attempt in (lambda: run_sync(lacking()), lambda: asyncio.run(on_loop(lacking()))):
        with pytest.raises(HostResourceError) as caught:
            attempt()
        assert caught.value.errno == number
        assert re.search(r"(host|process|user)\b.*'/some/file'", str(caught.value))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_what_the_host_lacks_during_a_run_is_a_typed_error(number: int, tmp_path: Path) -> None:
    class Lacking(Agent):
        name = "lacking"

        def check(self, request: AgentRequest) -> None: ...

        async def run(self, request: AgentRequest, context: AgentContext) -> None:
            raise OSError(number, os.strerror(number), "/some/file")

    async def run() -> None:
        async for _ in run_agent("go", tools=False, provider=Lacking(), record=tmp_path):
            pass

    with pytest.raises(HostResourceError, match="/some/file") as caught:
        asyncio.run(run())
    assert caught.value.errno == number
    (folder,) = tmp_path.iterdir()
    assert open_run(folder.name, tmp_path).info.message == str(caught.value)


def test_other_errors_stay_what_they_are() -> None:
    async def missing() -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file", "x")

    async def typed() -> None:
        raise RecordError("full")

    with pytest.raises(FileNotFoundError) as caught:
        run_sync(missing())
    assert not isinstance(caught.value, SeerError)
    with pytest.raises(RecordError):
        run_sync(typed())


def test_a_home_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with pytest.raises(HostResourceError, match="set XDG_STATE_HOME to a folder"):
        state_dir()


@pytest.mark.parametrize("command", [["ps"], ["runs", "list"], ["stop", "--all", "--yes"]])
def test_the_command_line_says_it_in_one_line(command: list[str]) -> None:
    env = {
        **os.environ,
        "XDG_STATE_HOME": "/dev/null",
        "XDG_CACHE_HOME": "/dev/null",
        "SEER_RUNS": "/dev/null/runs",
        "SEER_PROVIDER": "local",
    }
    done = subprocess.run(
        [sys.executable, "-m", "seer", *command], env=env, capture_output=True, text=True
    )
    shown = done.stdout + done.stderr
    assert "Traceback" not in shown
    assert "/dev/null/" in shown
    assert done.returncode == (1 if command[0] == "stop" else 0)


@pytest.mark.full
@pytest.mark.parametrize("descriptors", [24, 40])
def test_too_few_descriptors_end_a_start_with_a_typed_error(
    descriptors: int, tmp_path: Path
) -> None:
    program = (
        "import resource\n"
        "from seer.execution import create_local_session\n"
        "from seer.errors import SeerError\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))\n"
        "try:\n    create_local_session()\nexcept SeerError as error:\n"
        "    print('typed:', type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("typed: "), done.stdout + done.stderr


@pytest.mark.full
def test_a_run_with_64_descriptors_completes_about_as_soon_as_with_many(tmp_path: Path) -> None:
    program = """
import asyncio, resource, sys, time
from seer.execution import create_local_session
from seer.harness import Call, Scripted, Step, run_agent

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
steps = [Step(calls=(Call(tool="python", arguments={"code": "6 * 7"}, save="it"),)),
         Step(text="it is {it.text}")]

async def main(session):
    run = run_agent("go", session=session, provider=Scripted(steps), show=False)
    async for _ in run:
        pass
    print(run.result.reason, run.result.result.strip())

begin = time.monotonic()
with create_local_session() as session:
    asyncio.run(main(session))
print(time.monotonic() - begin)
"""
    taken: list[float] = []
    for descriptors in (1024, 64):
        done = subprocess.run(
            [sys.executable, "-c", program, str(descriptors)],
            cwd=tmp_path,
            env={**os.environ, "SEER_RUNS": str(tmp_path / "runs")},
            capture_output=True,
            text=True,
            timeout=240,
        )
        said, *seconds = done.stdout.splitlines() or [""]
        assert said == "completed it is 42", done.stdout + done.stderr
        taken.append(float(seconds[0]))
    # It once took thirty times as long, because it waited for descriptors that were never freed.
    assert taken[1] < 10 * taken[0], taken


@pytest.mark.full
def test_a_run_without_free_descriptors_ends_soon_with_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("from mcp.server import MCPServer\nMCPServer('s').run()\n")
    # With more free descriptors, each run fails at a later step of its start.
    program = """
import asyncio, contextlib, os, resource, sys
from seer.errors import SeerError
from seer.harness import Scripted, Step, run_agent

async def run():
    servers = {"s": {"command": sys.executable, "args": ["server.py"]}}
    agent = Scripted([Step(text="done")])
    async with asyncio.timeout(60):
        async for _ in run_agent("go", servers, provider=agent, show=False):
            pass

async def with_free(count):
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    for _ in range(count):
        os.close(taken.pop())
    try:
        await run()
        print("completed")
    except SeerError as error:
        print("typed", "Too many open files" in str(error))
    finally:
        for fd in taken:
            os.close(fd)

asyncio.run(run())
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
for count in range(9):
    asyncio.run(with_free(count))
asyncio.run(run())
print("completed")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "SEER_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        timeout=250,
    )
    said = done.stdout.splitlines()
    assert said == ["typed True"] * 9 + ["completed"], done.stdout + done.stderr
