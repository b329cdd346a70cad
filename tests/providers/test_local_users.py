"""Machines that root starts have their own users, and leave no files of those users."""

import asyncio
import os
from pathlib import Path

import pytest

from seer.isolation import BackendName
from seer.isolation._users import MACHINE_UIDS
from seer.providers import Machine, get_provider
from seer.providers.local._machine import LocalMachine
from seer.providers.local._record import machines_dir

from .test_local_details import BOTH, out, started

pytestmark = [pytest.mark.full, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def _owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def _keepers(machine: str) -> list[int]:
    """The keeper of a machine and its reaper."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if machine.encode() in command and b"seer_machine.keeper" in command:
            found.append(int(entry.name))
    return found


async def _user(machine: Machine) -> int:
    return int(await out(machine, "id -u"))


@BOTH
async def test_two_machines_have_two_users(backend: BackendName) -> None:
    async with started(isolation=backend) as one, started(isolation=backend) as two:
        users = {await _user(one), await _user(two)}
    assert len(users) == 2
    assert users <= set(MACHINE_UIDS)


@BOTH
async def test_what_a_machine_made_is_the_users_in_the_end(
    tmp_path: Path, backend: BackendName
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "before").write_text("here first")
    deep = "d/" * 1500
    script = (
        f"mkdir -p {deep}; echo x > {deep}file; ln -s /etc/passwd link; echo y > new; ln new twice"
    )
    async with started(isolation=backend, workdir=folder) as machine:
        user = await _user(machine)
        assert await out(machine, script) == ""
        assert (folder / "new").stat().st_uid == (folder / "before").stat().st_uid == user
    found = [folder, *folder.iterdir(), folder / deep, folder / deep / "file"]
    assert {path.lstat().st_uid for path in found} == {os.getuid()}
    assert os.stat("/etc/passwd").st_uid == 0  # noqa: PTH116


async def test_machines_with_one_folder_share_a_user_until_the_last_ends(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with started(workdir=folder) as one:
        async with started(workdir=folder) as two:
            assert await _user(one) == await _user(two)
            await out(two, "echo x > theirs")
        assert await out(one, "echo y >> theirs && cat theirs") == "x\ny"
    assert _owners(folder) == {os.getuid()}


async def test_a_folder_is_given_back_when_a_keeper_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with started(workdir=folder) as machine:
        assert isinstance(machine, LocalMachine)
        await out(machine, "echo x > file")
        for pid in _keepers(machine.id):
            os.kill(pid, 9)
        await machine.ended()
    async with asyncio.timeout(30):
        # A killed process holds its locks for a moment longer.
        while (machines_dir() / machine.id).is_dir():
            await get_provider("local").list()
    assert _owners(folder) == {os.getuid()}
