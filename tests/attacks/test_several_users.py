"""In a sandbox with several users, ids and capabilities of root are worthless outside."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.environment import Sandbox, SandboxConfig
from seer.errors import ConfigError, StartError, UserUnsupportedError
from seer.isolation import JAIL_UIDS

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="ids for users are given out by root"),
]

# Those that are needed to change files and users: chown, dac_override, fowner, fsetid, kill,
# setgid,
# setuid.
CAPABILITIES = 0xFB


def config(**fields: object) -> SandboxConfig:
    values: dict[str, object] = {"provider_options": {"users": True}, **fields}
    return SandboxConfig(gpu=None, provider="local", network="none", **values)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    with Sandbox(config()) as started:
        yield started


def as_root(sandbox: Sandbox, command: str) -> tuple[int, str]:
    done = sandbox.exec(command, user="root", check=False)
    return done.exit_code, str(done) + done.stderr


def test_every_id_inside_is_an_unprivileged_one_outside(sandbox: Sandbox) -> None:
    lines = as_root(sandbox, "cat /proc/self/uid_map /proc/self/gid_map")[1].splitlines()
    outside = [int(line.split()[1]) for line in lines]
    assert all(int(line.split()[2]) == 1 for line in lines)
    assert set(outside) <= set(JAIL_UIDS)
    assert len(lines) == 2 * len(set(outside)) <= 32


def test_root_has_few_capabilities_and_the_agent_none(sandbox: Sandbox) -> None:
    found = as_root(sandbox, "grep ^Cap /proc/self/status")[1]
    sets = {line.split(":")[0]: int(line.split()[1], 16) for line in found.splitlines()}
    assert sets["CapEff"] == sets["CapPrm"] == sets["CapBnd"] == CAPABILITIES
    assert sets["CapInh"] == sets["CapAmb"] == 0
    mine = sandbox.exec("grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status")
    assert [int(line.split()[1], 16) for line in mine.splitlines()] == [0, 0, 1]


@pytest.mark.parametrize(
    "command",
    [
        "unshare --user true",
        "unshare --mount true",
        "unshare --net true",
        "echo 100 >/proc/sys/user/max_user_namespaces",
        "mount -t tmpfs x /tmp",
        "mount --bind /etc /usr",
        "chroot /tmp /bin/true",
        "touch /usr/bin/planted",
        "touch /planted",
        "chown 0 /usr/bin/env",
        "chmod 4777 /usr/bin/env",
        "mknod /tmp/disk b 8 0",
        "cat /proc/1/environ",
        "ls /proc/1/root/",
        "kill -9 1",
        "nsenter --target 1 --mount true",
        "setpriv --reuid 2000 true",
        "chown 2000 /etc/hosts",
    ],
)
def test_root_cannot_leave_or_widen_its_namespace(sandbox: Sandbox, command: str) -> None:
    code, said = as_root(sandbox, f"{command}; exit $?")
    assert code != 0, said
    assert sandbox.exec("echo still here") == "still here\n"


def test_a_setuid_program_of_roots_gives_the_agent_nothing(sandbox: Sandbox) -> None:
    made = "cp /usr/bin/id /etc/id-root && chown 0:0 /etc/id-root && chmod 4755 /etc/id-root"
    assert as_root(sandbox, made)[0] == 0
    assert sandbox.exec("/etc/id-root -u").strip() == "1000"


def test_files_of_roots_belong_to_nobody_who_matters_outside(sandbox: Sandbox) -> None:
    name = f"seer-users-{sandbox.sandbox_id}"
    made = f"echo x >/tmp/{name} && chmod 4777 /tmp/{name}"
    assert as_root(sandbox, made)[0] == 0
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    found = list(state.glob(f"**/{sandbox.sandbox_id}/tmp/{name}"))
    assert [path.stat().st_uid in JAIL_UIDS for path in found] == [True]
    # Only root can pass the folders above it.
    assert [folder for folder in found[0].parents if folder.name == sandbox.sandbox_id][
        0
    ].stat().st_mode & 0o077 == 0


def test_users_that_root_adds_cannot_touch_each_others_files(sandbox: Sandbox) -> None:
    for name in ("ann", "ben"):
        code, said = as_root(sandbox, f"adduser --disabled-password --comment x {name}")
        assert code == 0, said
    sandbox.exec("echo secret >~/note; chmod 600 ~/note", user="ann")
    assert sandbox.exec("cat /home/ann/note", user="ben", check=False).exit_code != 0
    assert sandbox.exec("cat /home/ann/note", check=False).exit_code != 0


def test_killing_a_command_ends_what_its_root_started(sandbox: Sandbox) -> None:
    from seer.errors import CommandTimeoutError

    with pytest.raises(CommandTimeoutError):
        sandbox.exec("sleep 4242 & sleep 4242", user="root", timeout=1)
    assert sandbox.exec("pgrep -f 'sleep [4]242'", check=False).exit_code != 0


def test_a_sandbox_with_one_user_says_so() -> None:
    with (
        Sandbox(config(provider_options=None)) as sandbox,
        pytest.raises(UserUnsupportedError, match="only one user"),
    ):
        sandbox.exec("id", user="root")


@pytest.mark.parametrize("isolation", ["landlock", "none"])
def test_only_bubblewrap_has_users(isolation: str) -> None:
    with pytest.raises(StartError, match="only bubblewrap"):
        Sandbox(config(isolation=isolation)).start()


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises((StartError, ConfigError), match="local has: users"):
        Sandbox(config(provider_options={"user": True})).start()
