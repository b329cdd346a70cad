"""Set a hostile session beside a working one and print what still works. A script.

A process of its own, so that it can run as root or as an ordinary user:
`neighbours.py BACKEND ATTACK...`.
"""

import asyncio
import ctypes
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, cast

from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import LocalSession, acreate_local_session
from seer.isolation import BackendName
from seer.workspace import Library, Workspace

BOUND = 30.0
"""Seconds in which everything that a neighbour does must be done."""

PATIENCE = 5.0
"""Seconds for which an attack waits for what others of its user hold."""

INTERFACE = '''
import time
import numpy as np

@expose
def echo(text: str) -> str:
    """Give the text back."""
    return text

@expose
def double(numbers: np.ndarray) -> np.ndarray:
    """Twice the numbers."""
    return numbers * 2

@expose(timeout=0.3)
def late() -> None:
    """Take longer than it may."""
    time.sleep(60)
'''

# Each attack takes as much of one resource as it can get, in a process that keeps running.
ATTACKS = {
    "descriptors": """
import socket
pairs = []
def send():
    if len(pairs) == 160:
        return 0
    try:
        pair = socket.socketpair()
        socket.send_fds(pair[0], [b"x"], [0] * 250)
    except OSError:
        return 0
    pairs.append(pair)
    return 250
# The kernel refuses more when the user is above the limit, not yet at it.
held = take(send, resource.getrlimit(resource.RLIMIT_NOFILE)[0] + 1)
""",
    "signals": """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
info = (ctypes.c_int * 32)(signal.SIGRTMIN + 1, 0, -1)
def send():
    return libc.syscall(129, os.getpid(), signal.SIGRTMIN + 1, ctypes.byref(info)) == 0
held = take(send, resource.getrlimit(resource.RLIMIT_SIGPENDING)[0])
""",
    "timers": """
timer = ctypes.c_int()
def create():
    return libc.syscall(222, 0, None, ctypes.byref(timer)) == 0
held = take(create, resource.getrlimit(resource.RLIMIT_SIGPENDING)[0])
""",
    "processes": """
import time
try:
    while held < 900:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        held += 1
except OSError:
    pass
""",
    "watches": """
while libc.inotify_init1(0) >= 0:
    held += 1
""",
    "keyrings": """
for number in range(300):
    if libc.syscall(248, b"user", b"key%d" % number, b"x" * 100, 100, -4) < 0:
        break
    held += 1
""",
    "queues": """
rt = ctypes.CDLL("librt.so.1")
while rt.mq_open(b"/queue%d" % held, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0:
    held += 1
""",
    "pipes": """
import fcntl
pipes = []
try:
    while held < 1500:
        pipes.append(os.pipe())
        held += 1
        fcntl.fcntl(pipes[-1][1], 1031, 1 << 20)
except OSError:
    pass
for _, end in pipes:
    os.set_blocking(end, False)
    try:
        os.write(end, b"x" * (1 << 20))
    except OSError:
        pass
""",
    "locks": """
import fcntl, sys
files = []
for folder in {sys.prefix, sys.base_prefix, os.getcwd(), *sys.path}:
    for where, _, names in os.walk(folder):
        for name in names[:20]:
            try:
                files.append(open(os.path.join(where, name), "rb"))
                fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                held += 1
            except OSError:
                pass
        if held > 1000:
            break
""",
    "pages": """
block = os.urandom(1 << 20)
try:
    with open("pressure", "wb") as file:
        for _ in range(400):
            file.write(block)
            held += 1
    for _ in range(3):
        with open("pressure", "rb") as file:
            while file.read(1 << 20):
                pass
except OSError:
    pass
""",
}
# The kernel counts what `take` takes per user. When it refuses more, another process of the user
# may hold a part of the limit, if only a signal that it has not handled yet. A neighbour could get
# that part as soon as it is free. So the attack tries again until it holds the whole limit. It
# gives up when it gets nothing for some time, because the user's programs may hold a part
# permanently.
_HOLD = """
import ctypes, os, resource, signal, time
libc = ctypes.CDLL(None, use_errno=True)
held = 0
def take(some, limit):
    held, until = 0, time.monotonic() + {patience}
    while True:
        if got := some():
            held, until = held + got, time.monotonic() + {patience}
        elif held >= limit or time.monotonic() > until:
            return held
{code}
os.write(1, b"held %d\\n" % held)
signal.pause()
"""
START = """
import subprocess, sys
hostile = subprocess.Popen([sys.executable, "-c", {code!r}], stdout=subprocess.PIPE, text=True)
print(hostile.stdout.readline())
"""
STOP = "hostile.kill(); hostile.wait()"

# The actions of a working session, one function each.
CHECKS = {
    "call": "assert tools.echo('x') == 'x'",
    "arrays": (
        "given = np.ones(400_000)\n"
        "for _ in range(5):\n    assert tools.double(given).sum() == 800_000"
    ),
    "connect": (
        "import subprocess, sys\n"
        "code = 'import sys; sys.path[:] = ' + repr(sys.path) + '; import tools; '\n"
        "code += \"assert tools.echo('y') == 'y'\"\n"
        "subprocess.run([sys.executable, '-c', code], check=True, close_fds=False)"
    ),
    "process": ("import subprocess\nassert subprocess.check_output(['/bin/echo', 'z']) == b'z\\n'"),
    "files": (
        "import fcntl\nwith open('own', 'w') as file:\n"
        "    fcntl.flock(file, fcntl.LOCK_EX)\n    file.write('x' * 1_000_000)"
    ),
    "timer": (
        "import ctypes\ntimer = ctypes.c_int()\nlibc = ctypes.CDLL(None)\n"
        "assert libc.syscall(222, 0, None, ctypes.byref(timer)) == 0\n"
        "libc.syscall(226, timer)"
    ),
    "descriptor": (
        "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])\n"
        "import os\nos.close(socket.recv_fds(b, 1, 1)[1][0]); a.close(); b.close()"
    ),
    "watch": (
        "import ctypes, os\nfd = ctypes.CDLL(None).inotify_init1(0)\nassert fd >= 0\nos.close(fd)"
    ),
    "queue": (
        "import ctypes, os\nrt = ctypes.CDLL('librt.so.1')\n"
        "fd = rt.mq_open(b'/own', os.O_CREAT | os.O_RDWR, 0o600, None)\nassert fd >= 0\n"
        "rt.mq_unlink(b'/own'); os.close(fd)"
    ),
}
LANDLOCK_HAS_NOT = ("watch", "queue")


async def _check(session: LocalSession, name: str) -> str | None:
    """Return what went wrong, or None if everything worked within the time limit."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(BOUND):
            result = await session.aexec(CHECKS[name])
    except TimeoutError:
        return f"not done after {BOUND:g} s"
    if not result.ok:
        return result.text[-300:]
    took = time.monotonic() - began
    return f"took {took:.1f} s" if took > BOUND else None


def _user_checks() -> dict[str, str]:
    """Return what the programs of the user who started Seer can no longer do."""
    failed: dict[str, str] = {}
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_int()
    if libc.syscall(222, 0, None, ctypes.byref(timer)) != 0:
        failed["user: timer"] = os.strerror(ctypes.get_errno())
    else:
        libc.syscall(226, timer)
    watch = libc.inotify_init1(0)
    if watch < 0:
        failed["user: watch"] = os.strerror(ctypes.get_errno())
    else:
        os.close(watch)
    one, two = socket.socketpair()
    with one, two:
        try:
            socket.send_fds(one, [b"x"], [0])
            os.close(socket.recv_fds(two, 1, 1)[1][0])
        except OSError as error:
            failed["user: descriptor"] = str(error)
    return failed


async def attack(
    backend: BackendName, tools: Library, folder: Path, names: list[str]
) -> dict[str, dict[str, str]]:
    """Return, by attack, the checks that fail during it, and evidence that it took something."""
    workspace = Workspace(libraries=[tools])
    found: dict[str, dict[str, str]] = {}
    memory = 1 << 30
    one = await acreate_local_session(
        workspace, folder / "hostile", isolation=backend, memory=memory
    )
    async with one as hostile:
        two = await acreate_local_session(
            workspace, folder / "working", isolation=backend, memory=memory
        )
        async with two as working:
            assert (await working.aexec("import tools, numpy as np")).ok
            checks = [
                name for name in CHECKS if backend == "bubblewrap" or name not in LANDLOCK_HAS_NOT
            ]
            for name in names:
                code = START.format(code=_HOLD.format(code=ATTACKS[name], patience=PATIENCE))
                held = await hostile.aexec(code, timeout=60)
                assert held.ok and held.stdout.startswith("held "), held.text
                failed = {check: await _check(working, check) for check in checks}
                found[name] = {key: value for key, value in failed.items() if value is not None}
                found[name] |= _user_checks()
                found[name]["held"] = held.stdout.split()[1]
                await hostile.aexec(STOP)
            again = {check: await _check(working, check) for check in checks}
            found["after"] = {key: value for key, value in again.items() if value is not None}
    return found


def main(backend: BackendName, *names: str) -> None:
    """Print what failed, by attack."""
    with tempfile.TemporaryDirectory(prefix="seer-neighbours-") as made:
        folder = Path(made)
        (folder / "tools.py").write_text(INTERFACE)
        config = SandboxConfig(
            gpu=None,
            provider="local",
            python_packages=["numpy"],
            isolation=cast("Literal['bubblewrap', 'landlock']", backend),
        )
        with ScopedSandbox(config) as scoped:
            tools = scoped.serve(folder / "tools.py", "library", "tools", restart="on-failure")
            found = asyncio.run(attack(backend, tools, folder, list(names or ATTACKS)))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(cast("BackendName", sys.argv[1]), *sys.argv[2:])
