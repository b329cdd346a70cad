"""The escape attempts of the security page, in every kind of jail."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import pytest

from tests.selection import part
from tests.support import escapes

from .conftest import SYSTEM_PYTHON, Jail, Starter

SECURITY_PAGE = Path(__file__).parents[2] / "docs" / "security.md"

# An ordinary user without a jail can do these to the planted targets. If one of them fails, the
# attempts no longer work and the table proves nothing.
TEETH = (
    "read_host_file list_host_folder follow_link_out climb_out hard_link_read_only "
    "write_host_folder write_read_only truncate_by_reading chmod_host_file touch_host_file "
    "set_host_attribute watch_host_folder read_host_shm unshare_user clone3_user make_ring "
    "use_keyrings connect_loopback4 connect_unix send_unix_datagram send_from_pair "
    "connect_abstract list_processes read_environ open_memory signal_process trace_process "
    "take_descriptor limit_process renice_process pin_process attach_segment open_queue "
    "write_terminal fill_shm"
)


class _Outcome(TypedDict):
    name: str
    escaped: bool
    detail: str


class _Report(TypedDict):
    code: int
    stderr: str
    damage: list[str]
    outcomes: list[_Outcome]


def _attempt(starter: Starter, backend: str, *names: str, before: Sequence[str] = ()) -> _Report:
    done = subprocess.run(
        [*before, *starter.command("driver.py", backend, *names)],
        env=starter.environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=115,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _escaped(report: _Report) -> dict[str, str]:
    return {item["name"]: item["detail"] for item in report["outcomes"] if item["escaped"]}


@pytest.mark.full
@pytest.mark.alone
def test_exactly_the_stated_attempts_succeed(jail: Jail) -> None:
    report = _attempt(jail.starter, jail.backend)
    weak = {item.name for item in escapes.ATTEMPTS.values() if jail.setting in item.weak}
    assert report["code"] == 0, report["stderr"]
    assert report["damage"] == []
    assert set(_escaped(report)) == weak
    assert len(report["outcomes"]) >= 60


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("kind", part(["system", "venv", "built", "moved"], ["moved"]))
def test_no_kind_of_python_brings_anything_of_the_host_along(
    kind: str, jail: Jail, pythons: dict[str, tuple[str, str]]
) -> None:
    if kind == "built" and jail.starter.who == "user" and sys.base_prefix.startswith("/root/"):
        pytest.skip("this interpreter is root's")
    program, library = pythons[kind]
    starter = replace(jail.starter, python=program, library=library)
    names = [item.name for item in escapes.jail_attempts() if item.group == "files"]
    if kind != "moved":
        names = [item.name for item in escapes.jail_attempts() if not item.machine]
    report = _attempt(starter, jail.backend, *names)
    weak = {item.name for item in escapes.ATTEMPTS.values() if jail.setting in item.weak}
    assert report["code"] == 0, report["stderr"]
    assert report["damage"] == []
    assert set(_escaped(report)) == weak & set(names)


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_without_the_right_to_mount_is_jailed_like_an_ordinary_user(
    readable_copy: Path, tmp_path: Path
) -> None:
    starter = Starter("root", readable_copy / "seer", tmp_path, python=SYSTEM_PYTHON)
    weak = ("/usr/bin/setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    report = _attempt(starter, "landlock", before=weak)
    expected = {item.name for item in escapes.ATTEMPTS.values() if "landlock-user" in item.weak}
    assert report["code"] == 0, report["stderr"]
    assert report["damage"] == []
    assert set(_escaped(report)) == expected


@pytest.mark.full
def test_without_a_jail_the_attempts_succeed(starter: Starter) -> None:
    if starter.who == "root":
        pytest.skip("would be for real")
    names = TEETH.split()
    report = _attempt(starter, "none", *names)
    assert set(_escaped(report)) == set(names)
    assert report["damage"]


def test_the_security_page_has_the_table() -> None:
    page = SECURITY_PAGE.read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- table: begin -->\n\n")
    table, _, _ = rest.partition("\n<!-- table: end -->")
    assert table == escapes.table(), "write the output of tests.support.escapes.table() there"


def test_the_table_has_sixty_attempts_and_more() -> None:
    assert len(escapes.ATTEMPTS) >= 60
    groups = {item.group for item in escapes.ATTEMPTS.values()}
    assert groups == {"files", "processes", "network", "kernel", "resources", "session"}
