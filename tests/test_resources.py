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

from seer._places import state_dir
from seer._sync import on_loop, run_sync
from seer.errors import HostResourceError, RecordError, SeerError


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EROFS])
def test_what_the_host_lacks_is_a_typed_error(number: int) -> None:
    async def lacking() -> None:
        raise OSError(number, os.strerror(number), "/some/file")

    for attempt in (lambda: run_sync(lacking()), lambda: asyncio.run(on_loop(lacking()))):
        with pytest.raises(HostResourceError) as caught:
            attempt()
        assert caught.value.errno == number
        assert re.search(r"(host|process|user)\b.*'/some/file'", str(caught.value))


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
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("typed: "), done.stdout + done.stderr
