"""Code in a session's kernel reaches the exposed functions and nothing else."""

import os
import secrets
import socket
from pathlib import Path

import pytest

from seer.execution import LocalSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

BOMB = """
import os
wait, _ = os.pipe()
made = []
try:
    while len(made) < 20000:
        pid = os.fork()
        if not pid:
            os.read(wait, 1)
        made.append(pid)
except OSError:
    print('refused')
for pid in made:
    os.kill(pid, 9)
"""


def test_the_gates_socket_cannot_be_changed_or_replaced(session: LocalSession) -> None:
    result = session.exec(
        "import os\n"
        "path = os.environ['SEER_GATE_TOOLS'].removeprefix('path:')\n"
        "tries = [lambda: os.chmod(path, 0), lambda: os.unlink(path), lambda: os.utime(path),\n"
        "         lambda: os.rename(path, path + 'x'), lambda: open(path + '2', 'w')]\n"
        "for attempt in tries:\n"
        "    try:\n"
        "        attempt()\n"
        "        print('done')\n"
        "    except OSError as error:\n"
        "        print('refused')\n"
        "print(os.listdir(os.path.dirname(path)))"
    )
    assert result.text.split() == ["refused"] * 5 + ["['tools.sock']"]


def test_nothing_of_the_interface_lies_in_the_session(session: LocalSession) -> None:
    result = session.exec(
        "import subprocess\n"
        "found = subprocess.run(['grep', '-rl', 'only-in-the-' + 'source', '/run', '/seer/code',\n"
        "                        '/seer/lib', '/tmp', '/home', '/etc', '/workspace'],\n"
        "                       capture_output=True, text=True)\n"
        "print('found', found.stdout.split())"
    )
    assert "found []" in result.text


def test_abstract_sockets_of_the_host_are_not_there(session: LocalSession) -> None:
    # Avoids the word by which another test finds Seer's own abstract sockets.
    name = f"\0attack-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen(1)
        result = session.exec(
            f"import socket\nc = socket.socket(socket.AF_UNIX)\nprint(c.connect_ex({name!r}))"
        )
    assert result.text.strip() not in ("", "0")


def test_handles_results_and_calls_of_another_caller_do_not_exist(
    session: LocalSession, neighbour: LocalSession
) -> None:
    made = neighbour.exec(
        "import tools\nkept = tools.keep('mine')\n"
        "slots = getattr(type(kept), '__slots__', ())\n"
        "print([getattr(kept, name, '') for name in (*slots, *getattr(kept, '__dict__', ()))])"
    )
    words = {w.strip("[]',\"") for w in made.text.split()}
    (handle,) = [w for w in words if len(w) == 32]
    running = neighbour.submit("tools._gate; print(tools.slow(3.0))")
    result = session.exec(
        "import os, socket\n"
        "def ask(request):\n"
        "    with socket.socket(socket.AF_UNIX) as c:\n"
        "        c.connect(os.environ['SEER_GATE_TOOLS'].removeprefix('path:'))\n"
        "        c.sendall(request.encode() + b'\\r\\ncontent-length: 2\\r\\n\\r\\n{}')\n"
        "        return c.recv(65536).decode()\n"
        f"print(ask('POST /v1/fetch/{handle} HTTP/1.1'))\n"
        f"print(ask('POST /v1/free/{handle} HTTP/1.1'))\n"
        "for n in range(64):\n"
        "    answer = ask(f'POST /v1/cancel/c{n} HTTP/1.1')\n"
        "    assert '\"cancelled\": false' in answer, answer\n"
    )
    assert result.status == "ok", result.text
    assert "HandleError" in result.text
    assert '"freed": false' in result.text
    assert neighbour.result(running, wait=30).text.strip() == "3.0"
    assert "mine" in neighbour.exec("print(kept.fetch())").text


def test_the_session_has_a_limit_of_processes_and_survives_reaching_it(
    session: LocalSession,
) -> None:
    # Only those of its own machine: others start and end meanwhile.
    machine: str = session.about()["machine"]["id"]
    groups = [Path(top) for top, _, _ in os.walk("/sys/fs/cgroup") if top.endswith(f"-{machine}")]
    limits = [path.read_text().strip() for group in groups for path in group.glob("pids.max")]
    if not limits or "max" in limits:
        pytest.skip("no control group limits processes here")
    result = session.exec(
        f"import subprocess, sys\nargv = [sys.executable, '-I', '-S', '-c', {BOMB!r}]\n"
        "print(subprocess.run(argv, capture_output=True, text=True).stdout)",
        timeout=60,
    )
    assert result.text.strip() == "refused"
    assert session.exec("print('alive')").text.strip() == "alive"


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_a_kernel_that_ends_itself_is_replaced(session: LocalSession, how: str) -> None:
    assert session.exec(f"import os\n{how}", timeout=30).status == "died"
    assert session.exec("import tools; print(tools.echo('again'))").text.endswith("again\n")


def test_a_kernel_that_ends_all_others_is_replaced(session: LocalSession) -> None:
    # kill(-1) does not kill its caller. The caller ends when it notices the end of its server, in
    # this cell or in a later one.
    done = session.exec("import os\nos.kill(-1, 9)", timeout=30)
    for _ in range(20):
        if done.status == "died":
            break
        done = session.exec("import tools; print(tools.echo('again'))")
    assert session.exec("import tools; print(tools.echo('again'))").text.endswith("again\n")


def test_a_kernel_that_stops_itself_is_replaced(session: LocalSession) -> None:
    result = session.exec("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", timeout=0.5)
    assert result.status == "timeout"
    assert session.exec("print('again')").text.endswith("again\n")


def test_daemons_end_with_a_restart(session: LocalSession) -> None:
    mark = f"86{secrets.randbelow(10**9):09d}"
    session.exec(
        "import subprocess\n"
        f"command = 'setsid setsid sh -c \"echo up; exec sleep {mark}\" &'\n"
        "started = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE)\n"
        "started.stdout.readline()"
    )
    assert _running(mark)
    session.restart()
    assert not _running(mark)


def _running(argument: str) -> bool:
    wanted = argument.encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in path.read_bytes():
                return True
        except OSError:
            continue
    return False
