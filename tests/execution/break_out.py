"""Try the whole table of escapes through local sessions and print the outcomes. A script.

A process of its own, so that it can run as root or as an ordinary user: `break_out.py BACKEND...`.
With `--copies` the interface has copies, and only the gate and the session are tried.
"""

import asyncio
import json
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import seer
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import LocalSession, acreate_local_session
from seer.isolation import BackendName
from seer.workspace import Library, Workspace

if TYPE_CHECKING:
    from tests.support import escapes
else:
    # The test copies it here, because an ordinary user cannot read the tests.
    import escapes

MEMORY = 512 << 20
MARK = "only-in-the-source"
INTERFACE = f'''
import time
from seer.rpc import Handle

MARK = "{MARK}"

@expose
def echo(text: str) -> str:
    """Give the text back."""
    return text

@expose
def keep(text: str) -> Handle:
    """Keep a text."""
    return Handle(text)

def hidden() -> str:
    return MARK
'''
LIBRARY = Library(name="escapes", files=escapes.files())
RUN = """
import subprocess, sys
program = "import sys; sys.path[:0] = sys.argv[1:2]; import escapes; escapes.main(sys.argv[2:])"
done = subprocess.run([sys.executable, "-c", program, {library!r}, "facts.json", *{names!r}],
                      stdout=subprocess.PIPE, text=True, close_fds=False)
print(done.stdout)
"""
HERE = "import json, escapes\nescapes.ATTEMPTS[{name!r}].function(json.load(open('facts.json')))"
FOREIGN = """
import tools
from escapes._session import ask
kept = tools.keep('mine')
print([getattr(kept, name, '') for name in (*getattr(type(kept), '__slots__', ()),
                                            *getattr(kept, '__dict__', ()))])
assert ask('POST /v1/call/echo', b'{"args": ["mine"]}', call='theirs')[0] == 200
assert ask('GET /v1/result/theirs')[0] == 200, 'it must be there to be taken'
"""


class Report(TypedDict):
    """The outcome for one backend's session."""

    tried: list[str]
    escaped: dict[str, str]
    """What succeeded, with the evidence."""
    damage: list[str]
    """What was found touched, or did not work any more, afterwards."""


async def ask(session: LocalSession, code: str) -> str:
    async with asyncio.timeout(110):
        result = await session.aexec(code)
    assert result.ok, result.text
    return result.stdout.strip()


async def outcomes(session: LocalSession, library: str, names: list[str]) -> dict[str, str]:
    """Return what succeeded, with the evidence. An attempt that kills the session is stopped."""
    async with asyncio.timeout(110):
        result = await session.aexec(RUN.format(library=library, names=names))
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert result.status == "died" or len(found) == len(names), result.text
    for item in found:
        # These only use the gate and look at files. One that fails at this no longer tests
        # anything.
        if escapes.ATTEMPTS[item["name"]].group == "session" and not item["escaped"]:
            assert item["detail"] == "found nothing", item
    return {item["name"]: item["detail"] for item in found if item["escaped"]}


async def look_after(session: LocalSession) -> list[str]:
    """Whether session and gate still work; a machine that was just used up is replaced once."""
    shown: list[str] = []
    for _ in range(2):
        async with asyncio.timeout(110):
            result = await session.aexec("import tools; print(tools.echo('alive'))")
        if result.stdout == "alive\n":
            return []
        shown.append(result.text)
        if result.status != "died":
            break
    return [f"the session or the gate does not work any more: {shown}"]


async def forge(session: LocalSession, name: str) -> list[str]:
    """Run an attempt in the kernel itself; returns what no longer works afterwards."""
    async with asyncio.timeout(60):
        result = await session.aexec(HERE.format(name=name), timeout=30)
        after = await session.aexec("1 + 1", timeout=30)
    if result.status not in ("ok", "died") or after.value != "2":
        return [f"{name}: {result.status}, then {after.status} {after.text!r}"]
    shown = result.text + after.text
    return [f"{name}: {shown!r}"] if "forged" in shown or "unsigned" in shown else []


async def break_out(
    backend: BackendName, tools: Library, folder: Path, table: list[escapes.Attempt]
) -> Report:
    """Try these attempts in one session."""
    async with AsyncExitStack() as stack:
        workspace = Workspace(libraries=[LIBRARY, tools])
        neighbour = await acreate_local_session(workspace, folder / "other", isolation=backend)
        await stack.enter_async_context(neighbour)
        session = await acreate_local_session(
            workspace, folder / "work", isolation=backend, memory=MEMORY
        )
        await stack.enter_async_context(session)
        seen = await ask(
            session,
            "import json, os, resource, escapes\n"
            "print(json.dumps([os.getuid(), os.getcwd(), "
            "os.path.dirname(os.path.dirname(escapes.__file__)), "
            "resource.getrlimit(resource.RLIMIT_NOFILE)[1], "
            "resource.getrlimit(resource.RLIMIT_FSIZE)[1]]))",
        )
        uid, workdir, library, open_files, file_size = json.loads(seen)
        code = session._private.path / "code" / "lib"  # pyright: ignore[reportPrivateUsage]
        targets = stack.enter_context(
            escapes.plant(
                uid=uid if os.geteuid() == 0 else os.geteuid(),
                package=Path(seer.__file__).parent,
                workspace=workdir,
                workspace_source=folder / "work",
                read_only=library,
                read_only_source=code,
                limits={
                    "memory": MEMORY,
                    "shm": MEMORY // 2,
                    "processes": 2048,
                    "open_files": open_files,
                    "file_size": file_size,
                },
            )
        )
        words = (await ask(neighbour, FOREIGN)).replace("'", " ").replace(",", " ").split()
        facts = {
            **targets.facts,
            "source_mark": MARK[::-1],
            "foreign_call": "theirs",
            "foreign_handle": next(word for word in words if len(word) == 32),
        }
        await session.awrite_file("facts.json", json.dumps(facts).encode())
        apart = [item.name for item in table if item.group == "resources"]
        here = [item.name for item in table if item.in_kernel]
        plain = [item.name for item in table if item.name not in (*apart, *here)]
        escaped = await outcomes(session, library, plain)
        damage: list[str] = []
        for name in here:
            damage += await forge(session, name)
        for name in apart:
            escaped |= await outcomes(session, library, [name])
        damage += targets.damage()
        if (code / "locked.txt").read_text() != "as it was":
            damage.append("the file in the read-only mount was changed")
        damage += await look_after(session)
        if "mine" not in await ask(neighbour, "print(kept.fetch())"):
            damage.append("another session lost what it kept")
    if escaped.get("list_homes") == "/home: ['agent']":
        del escaped["list_homes"]  # the session's own home, the only one there is
    return Report(tried=[*plain, *here, *apart], escaped=escaped, damage=damage)


def main(replicas: int, *names: BackendName) -> None:
    """One report for each backend."""
    found: dict[str, Report] = {}
    table = list(escapes.ATTEMPTS.values())
    if replicas > 1:
        table = [item for item in table if item.group == "session"]
    with tempfile.TemporaryDirectory(prefix="seer-break-out-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "tools.py").write_text(INTERFACE)
        with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
            tools: Any = scoped.serve(folder / "tools.py", "library", "tools", replicas=replicas)
            for name in names:
                found[name] = asyncio.run(break_out(name, tools, folder / name, table))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--copies"]
    main(2 if "--copies" in sys.argv else 1, *cast("list[BackendName]", words))
