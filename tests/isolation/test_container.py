"""The `container` backend separates a sandbox's programs from Seer's on a rented machine."""

import os
import subprocess
from pathlib import Path

import pytest

from seer.errors import IsolationError, IsolationUnavailableError
from seer.isolation import JAIL_UIDS, Mount, Policy, choose

pytestmark = [
    pytest.mark.full,
    # Containers of the stand-in clouds use the same user id, and a test uses up its processes.
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a rented container's root"),
]


def _run(policy: Policy, script: str) -> "subprocess.CompletedProcess[str]":
    launch = choose("container").launch(policy, ["/bin/sh", "-c", script])
    try:
        return subprocess.run(
            launch.argv,
            env=dict(launch.env),
            pass_fds=launch.pass_fds,
            capture_output=True,
            text=True,
            timeout=30,
        )
    finally:
        launch.close()


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    work = tmp_path / "closed" / "work"
    work.mkdir(parents=True)
    work.parent.chmod(0o700)
    os.chown(work, JAIL_UIDS[0], JAIL_UIDS[0])
    return Policy(
        mounts=(Mount(work, "/workspace", writable=True),), cwd="/workspace", network="host"
    )


def test_programs_are_an_unprivileged_user_who_reaches_its_folder(policy: Policy) -> None:
    done = _run(policy, "id -u; echo here > file && cat file; grep CapEff /proc/self/status")
    assert done.stdout.split() == [str(JAIL_UIDS[0]), "here", "CapEff:", "0" * 16], done.stderr


def test_folders_on_the_way_can_be_passed_but_not_listed(policy: Policy) -> None:
    done = _run(policy, "ls ..")
    assert done.returncode != 0
    assert "ermission denied" in done.stderr


def test_processes_of_root_cannot_be_signalled_or_read(policy: Policy) -> None:
    me = os.getpid()
    done = _run(policy, f"kill -STOP {me}; cat /proc/{me}/environ; ls /proc/{me}/fd")
    assert done.stdout == ""
    assert done.stderr.count("ermitted") + done.stderr.count("ermission denied") == 3


def test_a_set_user_id_program_gives_nothing_back(policy: Policy, tmp_path: Path) -> None:
    shell = policy.mounts[0].source / "shell"
    shell.write_bytes(Path("/bin/sh").read_bytes())
    shell.chmod(0o4755)
    assert _run(policy, "./shell -p -c 'id -u'").stdout.strip() == str(JAIL_UIDS[0])


def test_without_a_network_internet_sockets_cannot_be_made(policy: Policy) -> None:
    code = (
        "import socket\n"
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):\n"
        "    try: socket.socket(family).close(); print('made')\n"
        "    except OSError as error: print(error.errno)\n"
    )
    closed = Policy(mounts=policy.mounts, cwd=policy.cwd, network="none")
    assert _run(policy, f'/usr/bin/python3 -c "{code}"').stdout.split() == ["made"] * 3
    assert _run(closed, f'/usr/bin/python3 -c "{code}"').stdout.split() == ["97", "97", "made"]


def test_what_it_cannot_keep_is_refused() -> None:
    for need in ("hidden", "proxy"):
        with pytest.raises(IsolationUnavailableError, match="rented container"):
            choose("container", needs=frozenset({need}))
    with pytest.raises(IsolationError, match="rented container"):
        choose("container").launch(Policy(mounts=(), cwd="/", network="proxy"), ["true"])
