"""What programs in a jail see, on both backends, started by root and by an ordinary user."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from .conftest import SYSTEM_PYTHON, Jail

pytestmark = pytest.mark.full

SECRET = "s3cret-value-that-must-not-show"


def test_the_environment_is_exactly_the_policys(jail: Jail) -> None:
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    report = jail.python(code, env={"TOKEN": SECRET, "ODD": "a b\n'\"$x"})
    found = json.loads(report["stdout"])
    # Python adds the first, bwrap the second, and landlock the third where /etc is the host's.
    for added in ("LC_CTYPE", "PWD", "GIT_CONFIG_NOSYSTEM"):
        found.pop(added, None)
    assert found == {"PATH": "/usr/bin:/bin", "TOKEN": SECRET, "ODD": "a b\n'\"$x", "FDS": ""}


def test_secrets_stand_in_no_command_line_and_no_launch(jail: Jail) -> None:
    scan = (
        "import pathlib\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    try: text = path.read_bytes()\n"
        "    except OSError: continue\n"
        "    if b's3cret-value' in text and b'read_bytes' not in text: print(path, text)\n"
    )
    code = "import os, sys; print(os.environ['TOKEN'], flush=True); sys.stdin.read()"
    report = jail.python(code, env={"TOKEN": SECRET}, probe=[SYSTEM_PYTHON, "-c", scan])
    assert report["stdout"].strip() == SECRET
    assert report["probe"] == ""
    assert SECRET not in " ".join(report["argv"])


def test_named_descriptors_arrive_and_no_others(jail: Jail) -> None:
    code = (
        "import os\n"
        "told = [int(fd) for fd in os.environ['FDS'].split()]\n"
        "print([os.read(fd, 100).decode() for fd in told])\n"
        "def is_open(fd):\n"
        "    try: os.fstat(fd)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "print([fd for fd in range(3, 2000) if is_open(fd) and fd not in told])\n"
    )
    report = jail.python(code, descriptors=["one", "two"], leaked=True)
    assert report["stdout"] == "['one', 'two']\n[]\n", report["stderr"]


def test_mounts_appear_where_the_view_says(jail: Jail) -> None:
    fixed, work = jail.starter.make("fixed"), jail.starter.make("work")
    (fixed / "a.txt").write_text("hello")
    code = (
        "import os, sys, pathlib\n"
        "print(pathlib.Path(sys.argv[1], 'a.txt').read_text())\n"
        "pathlib.Path('out.txt').write_text('written')\n"
        "print(os.getcwd() == sys.argv[2])\n"
    )
    report = jail.python(
        code,
        "{view:/data/fixed}",
        "{view:/workspace}",
        mounts=[(fixed, "/data/fixed", False), (work, "/workspace", True)],
        cwd="/workspace",
    )
    assert report["stdout"] == "hello\nTrue\n", report["stderr"]
    assert (work / "out.txt").read_text() == "written"
    if jail.backend == "bubblewrap":
        assert report["view"]["/workspace"] == "/workspace"


def install(site: Path, *files: str) -> None:
    """Install files of a distribution of Seer's in a folder for packages."""
    for name in files:
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("content of " + name)
    (site / "seer_extra-1.0.dist-info").mkdir()
    record = "".join(f"{name},,\n" for name in files)
    (site / "seer_extra-1.0.dist-info" / "RECORD").write_text(record)


def test_seers_own_files_are_not_seen_through_a_wider_mount(jail: Jail) -> None:
    outer = jail.starter.make("outer")
    (outer / "site" / "open").mkdir(parents=True)
    (outer / "site" / "open" / "a.txt").write_text("content of open/a.txt")
    install(outer / "site", "closed/b.txt", "closed.txt")
    code = (
        "import sys, pathlib\n"
        "for name in ('open/a.txt', 'closed/b.txt', 'closed.txt'):\n"
        "    try: print(repr(pathlib.Path(sys.argv[1], 'site', name).read_text()))\n"
        "    except OSError: print('gone')\n"
    )
    report = jail.python(
        code,
        "{view:/outer}",
        mounts=[(outer, "/outer", False)],
        sites=[outer / "site"],
    )
    first, second, third = report["stdout"].splitlines()
    assert first == "'content of open/a.txt'"
    assert second == "gone"
    assert third in ("gone", "''")


def test_a_mount_inside_a_masked_folder_is_seen(jail: Jail) -> None:
    outer, chosen = jail.starter.make("outer"), jail.starter.make("chosen")
    install(outer, "closed/secret")
    (outer / "closed" / "door").mkdir()
    (chosen / "a.txt").write_text("chosen")
    code = (
        "import sys, pathlib\n"
        "print(pathlib.Path(sys.argv[2], 'a.txt').read_text())\n"
        "try: print(pathlib.Path(sys.argv[1], 'closed', 'secret').read_text())\n"
        "except OSError: print('gone')\n"
    )
    report = jail.python(
        code,
        "{view:/outer}",
        "{view:/outer/closed/door}",
        mounts=[(outer, "/outer", False), (chosen, "/outer/closed/door", False)],
        sites=[outer],
    )
    assert report["stdout"] == "chosen\ngone\n", report["stderr"]


def test_seer_itself_is_masked_wherever_a_mount_would_show_it(jail: Jail) -> None:
    above = jail.starter.package.parent
    code = (
        "import os, sys\n"
        "try: print(os.listdir(sys.argv[1] + '/seer'))\n"
        "except OSError: print([])\n"
        "try: open(sys.argv[1] + '/seer/errors.py')\n"
        "except OSError: print('gone')\n"
        "print(len(open(sys.argv[1] + '/spawn.py').read()) > 0)\n"
    )
    report = jail.python(code, "{view:/above}", mounts=[(above, "/above", False)])
    assert report["stdout"] == "[]\ngone\nTrue\n", report["stderr"]


def test_a_mount_of_seer_itself_is_refused(jail: Jail) -> None:
    report = jail.run("/bin/true", mounts=[(jail.starter.package, "/code", False)])
    assert "Seer's own files" in report["error"]


def test_impossible_mounts_are_refused_before_anything_starts(jail: Jail) -> None:
    folder = jail.starter.make("folder")
    missing = jail.run("/bin/true", mounts=[(folder / "none", "/data", False)])
    assert "does not exist" in missing["error"]
    relative = jail.run("/bin/true", mounts=[(folder, "data/../x", False)])
    assert "absolute" in relative["error"]
    nested = jail.run("/bin/true", mounts=[(folder, "/work", True), (folder, "/work/in", False)])
    assert "inside the writable mount" in nested["error"]


def test_limits_are_set_and_cannot_be_raised(jail: Jail) -> None:
    code = (
        "import resource as r\n"
        "print([r.getrlimit(x) for x in (r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CPU, "
        "r.RLIMIT_CORE)])\n"
    )
    limits = {"open_files": 99, "file_size": 4096, "cpu_seconds": 77}
    report = jail.python(code, limits=limits)
    assert report["stdout"] == "[(99, 99), (4096, 4096), (77, 77), (0, 0)]\n", report["stderr"]


def test_the_exit_code_is_the_programs(jail: Jail) -> None:
    assert jail.run("/bin/sh", "-c", "exit 7")["code"] == 7


def test_a_program_that_does_not_exist_is_an_error_not_a_hang(jail: Jail) -> None:
    report = jail.run("/no/such/program")
    assert report["code"] != 0
    assert "no/such/program" in report["stderr"] or "such file" in report["stderr"]


def _hold(jail: Jail, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        jail.starter.command("hold.py", jail.backend, SYSTEM_PYTHON, "-c", code),
        env=jail.starter.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd="/",
    )


def _ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether every process that holds the pipe ends soon."""
    assert process.stdout is not None
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    reader.start()
    reader.join(10)
    return not reader.is_alive()


def test_the_jail_dies_with_its_parent(jail: Jail) -> None:
    code = "import signal; print('ready', flush=True); signal.pause()"
    with _hold(jail, code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        assert _ends(process)


def test_daemons_in_the_jail_die_with_its_first_process(jail: Jail) -> None:
    if jail.setting == "landlock-user":
        pytest.skip("without namespaces, the keeper of a machine has to find them")
    code = (
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print('ready', flush=True)\n"
        "        signal.pause()\n"
        "    os._exit(0)\n"
        "signal.pause()\n"
    )
    with _hold(jail, code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        assert _ends(process)


def test_the_hosts_network_is_there_when_the_policy_says_so(jail: Jail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('in')"
        assert jail.python(code, network="host")["stdout"] == "in\n"
        assert jail.python(code, network="none")["stdout"] == ""


def test_ordinary_programs_work(jail: Jail) -> None:
    work = jail.starter.make("work")
    code = (
        "import concurrent.futures, hashlib, os, pathlib, shutil, sqlite3, ssl, subprocess\n"
        "import tempfile, threading, asyncio, ctypes, signal\n"
        "here = pathlib.Path.cwd()\n"
        "with concurrent.futures.ThreadPoolExecutor() as pool: list(pool.map(abs, range(50)))\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "sqlite3.connect(here / 'db').execute('create table t (a)')\n"
        "(here / 'a').write_text('x'); shutil.copy(here / 'a', here / 'b')\n"
        "child = subprocess.Popen(['sleep', '100']); child.kill(); assert child.wait() == -9\n"
        "git = ['git', '-c', 'user.name=a', '-c', 'user.email=a@b.c']\n"
        "subprocess.run(['git', 'init', '-q', 'repo'], check=True)\n"
        "commit = [*git, 'commit', '-q', '--allow-empty', '-m', 'm']\n"
        "subprocess.run(commit, cwd='repo', check=True)\n"
        "subprocess.run('ls -la | sort > /dev/null', shell=True, check=True)\n"
        "print('fine')\n"
    )
    report = jail.python(
        code,
        mounts=[(work, "/workspace", True)],
        cwd="/workspace",
        env={"HOME": "{view:/workspace}", "TMPDIR": "{view:/workspace}"},
    )
    assert report["stdout"] == "fine\n", report["stderr"]


def test_all_jails_together_leave_process_ids_to_everybody_else(jail: Jail) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[1])"
    report = jail.python(code)
    ids = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert 0 < int(report["stdout"]) <= ids // 4


def test_scientific_python_works(jail: Jail) -> None:
    if jail.starter.who == "user" and os.geteuid() == 0:
        pytest.skip("the interpreter with the packages is root's")
    numpy = pytest.importorskip("numpy")
    packages = Path(numpy.__file__).parents[1]
    mounts = [(packages, "/opt/packages", False)]
    more = (
        "read, write = os.openpty()\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(sum(pool.map(abs, range(10))))\n"
    )
    if jail.backend == "landlock" and jail.starter.who == "user":
        # Seer's own files are hidden among the packages, so their folder cannot be listed, and
        # Python finds nothing in it. A folder with links to numpy alone can be listed.
        links = jail.starter.make("links")
        parts = [part for part in packages.iterdir() if part.name in ("numpy", "numpy.libs")]
        for part in parts:
            (links / part.name).symlink_to(part)
        mounts = [(part, f"/opt/{part.name}", False) for part in parts]
        mounts.append((links, "/opt/packages", False))
        more = "print(45)"  # terminals and semaphores there would be the host's
    work = jail.starter.make("work")
    code = (
        "import numpy, multiprocessing, os\n"
        "a = numpy.random.rand(300, 300); (a @ a).sum()\n"
        "try:\n"
        "    import torch\n"
        "    t = torch.rand(300, 300, requires_grad=True); (t @ t).sum().backward()\n"
        "except ImportError: pass\n" + more
    )
    report = jail.run(
        "{view:/opt/python}/bin/python3",
        "-c",
        code,
        mounts=[
            (Path(sys.base_prefix), "/opt/python", False),
            *mounts,
            (work, "/workspace", True),
        ],
        cwd="/workspace",
        env={
            "LD_LIBRARY_PATH": "{view:/opt/python}/lib",
            "PYTHONPATH": "{view:/opt/packages}",
            "HOME": "{view:/workspace}",
            "TMPDIR": "{view:/workspace}",
        },
    )
    assert report["stdout"] == "45\n", report["stderr"]
