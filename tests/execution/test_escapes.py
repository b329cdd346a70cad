"""The table of attempts to break out, tried by code that an agent runs in a session."""

import asyncio
import json
import os
from pathlib import Path

import pytest

import seer
from seer.execution import LocalSession, acreate_local_session
from seer.isolation import BackendName, backends
from seer.testing import escapes
from seer.workspace import Library, Workspace

pytestmark = pytest.mark.full

MEMORY = 512 << 20
LIBRARY = Library(name="escapes", files=escapes.files())
RUN = """
import subprocess, sys
program = "import sys; sys.path.insert(0, sys.argv[1]); import escapes; escapes.main(sys.argv[2:])"
done = subprocess.run([sys.executable, "-c", program, {library!r}, "facts.json", *{names!r}],
                      stdout=subprocess.PIPE, text=True)
print(done.stdout)
"""


async def ask(session: LocalSession, code: str) -> str:
    async with asyncio.timeout(110):
        result = await session.aexec(code)
    assert result.ok, result.text
    return result.stdout.strip()


async def outcomes(session: LocalSession, library: str, names: list[str]) -> dict[str, str]:
    """What succeeded, with the evidence. A session that dies of an attempt has stopped it."""
    async with asyncio.timeout(110):
        result = await session.aexec(RUN.format(library=library, names=names))
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert result.status == "died" or len(found) == len(names), result.text
    return {item["name"]: item["detail"] for item in found if item["escaped"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_exactly_the_stated_attempts_succeed(backend: BackendName, tmp_path: Path) -> None:
    if (reason := backends()[backend]) is not None:
        pytest.skip(reason)
    async with await acreate_local_session(
        Workspace(libraries=[LIBRARY]), tmp_path / "work", isolation=backend, memory=MEMORY
    ) as session:
        seen = json.loads(
            await ask(
                session,
                "import json, os, resource, escapes\n"
                "print(json.dumps([os.getuid(), os.getcwd(), "
                "os.path.dirname(os.path.dirname(escapes.__file__)), "
                "resource.getrlimit(resource.RLIMIT_NOFILE)[1], "
                "resource.getrlimit(resource.RLIMIT_FSIZE)[1]]))",
            )
        )
        uid, workspace, library, open_files, file_size = seen
        code = session._private.path / "code" / "lib"  # pyright: ignore[reportPrivateUsage]
        with escapes.plant(
            uid=uid if os.geteuid() == 0 else os.geteuid(),
            package=Path(seer.__file__).parent,
            workspace=workspace,
            workspace_source=tmp_path / "work",
            read_only=library,
            read_only_source=code,
            limits={
                "memory": MEMORY,
                "shm": MEMORY // 2,
                "processes": 2048,
                "open_files": open_files,
                "file_size": file_size,
            },
        ) as targets:
            await session.awrite_file("facts.json", json.dumps(targets.facts).encode())
            table = escapes.ATTEMPTS.values()
            plain = [item.name for item in table if item.group != "resources"]
            escaped = await outcomes(session, library, plain)
            for item in table:
                if item.group == "resources":
                    escaped |= await outcomes(session, library, [item.name])
            damage = targets.damage()
            assert (code / "locked.txt").read_text() == "as it was"
        setting = f"{backend}-{'root' if os.geteuid() == 0 else 'user'}"
        weak = {item.name for item in table if setting in item.weak}
        if escaped.get("list_homes") == "/home: ['agent']":
            del escaped["list_homes"]  # the session's own home, the only one there is
        assert set(escaped) == weak, escaped
        assert damage == []
        assert await ask(session, "print('alive')") == "alive"
