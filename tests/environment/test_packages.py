"""Environments built for real: installed packages are linked, the rest is fetched in a jail.

It builds environments itself, because these cases need no machine.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy
import pytest

from seer.environment.packages import _build_jail, _installed
from seer.environment.packages._assemble import take_over
from seer.environment.packages._packages import (
    build_environment,
    check_python_version,
    check_system_packages,
    collect_wheels,
)
from seer.errors import PackageError
from seer.isolation import (
    Backend,
    Mount,
    Policy,
    backends,
    choose,
    interpreter_env,
    interpreter_mounts,
)

pytestmark = pytest.mark.full

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as the only source of packages, and a cache of the test's own."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    return wheels


def add_wheel(index: Path, name: str, version: str = "1.0", requires: tuple[str, ...] = ()) -> None:
    info = f"{name}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {other}\n" for other in requires)
    files = {
        f"{name}.py": f"version = {version!r}\ndef main():\n    print(version)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


def site(environment: Path) -> Path:
    return environment / "lib" / VERSION / "site-packages"


def run_inside(environment: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a jail that sees the environment as a sandbox would."""
    backend = choose("bubblewrap")
    mounts = (*interpreter_mounts("/seer/python"), Mount(environment, "/elsewhere/env"))
    variables = interpreter_env("/seer/python", backend.view(mounts))
    path = "/elsewhere/env/bin:/usr/bin:/bin"
    launch = backend.launch(Policy(mounts=mounts, env={"PATH": path, **variables}), argv)
    try:
        return subprocess.run(
            launch.argv,
            env=launch.env,
            pass_fds=launch.pass_fds,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        launch.close()


async def test_what_is_installed_here_is_linked_without_any_source() -> None:
    environment = await build_environment(["numpy", "packaging"])
    here = await asyncio.to_thread(Path(numpy.__file__).stat)
    linked = site(environment) / "numpy" / "__init__.py"
    # On Linux only root can link to files of other users, and links cannot cross file systems.
    if os.geteuid() in (0, here.st_uid) and environment.stat().st_dev == here.st_dev:
        assert linked.stat().st_ino == here.st_ino
    code = "import numpy, packaging, sys; print(numpy.arange(3).sum(), sys.prefix)"
    done = run_inside(environment, "/elsewhere/env/bin/python3", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 /elsewhere/env\n", "")


async def test_seer_is_never_there() -> None:
    environment = await build_environment(["packaging"])
    for module in ("seer", "src", "interp_infra"):
        # -P: the jail starts in "/", which has a folder of the same name.
        program = ("/elsewhere/env/bin/python3", "-P", "-c", f"import {module}")
        done = run_inside(environment, *program)
        assert "ModuleNotFoundError" in done.stderr
    names = {path.name for path in site(environment).iterdir()}
    assert not [name for name in names if "seer" in name or name.endswith(".pth")]


async def test_the_rest_is_fetched_and_its_scripts_work(index: Path) -> None:
    add_wheel(index, "newpkg", requires=("packaging",))
    told: list[str] = []
    environment = await build_environment(["newpkg"], on_progress=told.append)
    assert (site(environment) / "newpkg.py").stat().st_mode & 0o777 == 0o644
    assert (site(environment) / "packaging").is_dir()
    done = run_inside(environment, "/elsewhere/env/bin/newpkg")
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr
    assert any("linking packaging" in line for line in told)
    owners = {path.lstat().st_uid for path in environment.rglob("*")}
    assert owners == {os.geteuid()}


async def test_uvs_own_file_is_honoured_in_the_jail(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_wheel(index, "newpkg")
    config = tmp_path / "uv.toml"
    config.write_text(f'no-index = true\nfind-links = ["{index}"]\n')
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("UV_CONFIG_FILE", str(config))
    environment = await build_environment(["newpkg"])
    assert (site(environment) / "newpkg.py").exists()
    config.write_text(config.read_text() + "# other sources may give other packages\n")
    assert await build_environment(["newpkg"]) != environment


async def test_a_package_may_be_a_file_of_this_machine(index: Path, tmp_path: Path) -> None:
    add_wheel(index, "filed")
    wheel = tmp_path / "elsewhere" / "filed-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    (index / wheel.name).rename(wheel)
    first = await build_environment([f"filed @ file://{wheel}"])
    assert (site(first) / "filed.py").exists()
    os.utime(wheel, (0, 0))
    assert await build_environment([f"filed @ file://{wheel}"]) != first
    with pytest.raises(PackageError, match="does not exist"):
        await build_environment(["filed @ file:///no/such.whl"])


async def test_without_bubblewrap_packages_are_fetched_under_landlock(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def landlock(_: str, **__: object) -> Backend:
        return choose("landlock")

    if backends()["landlock"] is not None:
        pytest.skip("Landlock does not work here")
    add_wheel(index, "filed", requires=("newpkg",))
    add_wheel(index, "newpkg")
    wheel = tmp_path / "filed-1.0-py3-none-any.whl"
    (index / wheel.name).rename(wheel)
    monkeypatch.setattr(_build_jail, "choose", landlock)
    environment = await build_environment([f"filed @ file://{wheel}"])
    assert (site(environment) / "newpkg.py").exists()
    done = run_inside(environment, "/elsewhere/env/bin/filed")
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr


def test_without_mounts_a_folder_below_another_mounts_target_keeps_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rented machine has wheels in a store below the path at which builds have their cache."""
    cache, wheels = tmp_path / "draft" / "cache", tmp_path / "store" / "wheels"
    cache.mkdir(parents=True)
    wheels.mkdir(parents=True)

    def without_mounts(_: str) -> Backend:
        return choose("none")

    monkeypatch.setattr(_build_jail, "choose", without_mounts)
    jail = _build_jail.BuildJail(
        mounts=[
            *interpreter_mounts(_build_jail.PYTHON),
            Mount(cache, str(tmp_path), writable=True),
            Mount(wheels, str(wheels)),
        ],
        env={},
        path_env={},
        index=None,
    )
    assert jail.translate(f"file://{wheels}/a.whl") == f"file://{wheels}/a.whl"
    assert jail.translate(f"{tmp_path}/uv") == f"{cache}/uv"
    assert jail.restore(f"{cache}/uv {wheels}") == f"{tmp_path}/uv {wheels}"


async def test_an_installed_version_that_does_not_fit_is_replaced(index: Path) -> None:
    add_wheel(index, "packaging", "999.0")
    environment = await build_environment(["packaging>=999"])
    assert (site(environment) / "packaging.py").read_text().startswith("version = '999.0'")


async def test_equal_wishes_share_one_environment() -> None:
    first, second = await asyncio.gather(
        build_environment(["packaging", "idna"]), build_environment(["idna", " packaging"])
    )
    assert first == second
    assert await build_environment(["idna"]) != first


async def test_two_processes_at_once_build_once(index: Path, tmp_path: Path) -> None:
    add_wheel(index, "newpkg")
    program = (
        "import asyncio; from seer.environment.packages._packages import build_environment;"
        "print(asyncio.run(build_environment(['newpkg'], on_progress=print)))"
    )
    starts = [_spawn(program) for _ in range(2)]
    outputs = [await asyncio.to_thread(start.communicate, timeout=100) for start in starts]
    results = [out.splitlines() for out, _ in outputs]
    assert results[0][-1] == results[1][-1]
    assert sorted(len(lines) > 1 for lines in results) == [False, True]
    left = [p.name for p in (tmp_path / "cache/seer/envs").iterdir() if "draft" in p.name]
    assert not left


def _spawn(program: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", program]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def test_a_resolver_failure_has_the_resolvers_words(tmp_path: Path) -> None:
    with pytest.raises(PackageError) as caught:
        await build_environment(["no-such-package-anywhere"])
    assert "no-such-package-anywhere" in str(caught.value)
    assert "No solution found" in str(caught.value)
    assert not [p for p in (tmp_path / "cache/seer/envs").iterdir() if p.is_dir()]


async def test_conflicting_wishes_are_explained(index: Path) -> None:
    add_wheel(index, "left", requires=("idna<1",))
    with pytest.raises(PackageError, match="unsatisfiable"):
        await build_environment(["left", "idna>=3"])


async def test_a_damaged_package_is_not_taken_over(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_wheel(index, "fragile", "1.0")
    prefix = tmp_path / "venv"
    folder = prefix / "lib" / VERSION / "site-packages"
    folder.mkdir(parents=True)
    shutil.unpack_archive(index / "fragile-1.0-py3-none-any.whl", folder, "zip")
    (folder / "fragile.py").unlink()

    def folders() -> tuple[Path, ...]:
        return (folder,)

    monkeypatch.setattr(_installed, "site_folders", folders)
    environment = await build_environment(["fragile"])
    assert (site(environment) / "fragile.py").exists()


async def test_a_package_is_built_from_source_in_the_jail(index: Path, tmp_path: Path) -> None:
    marker = tmp_path / "escaped"
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    source = tmp_path / "sourced-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "sourced"\nversion = "1.0"\n'
    )
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: sourced\nVersion: 1.0\n")
    (source / "backend.py").write_text(
        _BACKEND.replace("MARKER", str(marker)).replace("SECRET", str(secret))
    )
    archive = shutil.make_archive(str(index / "sourced-1.0"), "gztar", tmp_path, "sourced-1.0")
    assert archive.endswith(".tar.gz")
    environment = await build_environment(["sourced"])
    seen = (site(environment) / "sourced.py").read_text()
    assert not marker.exists()
    assert "wrote=False" in seen
    assert "read=False" in seen
    assert not (tmp_path / "cache/seer/uv").exists() or "sourced" not in str(
        list((tmp_path / "cache/seer/uv").rglob("*"))
    )


_BACKEND = """
import os, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    try:
        open("MARKER", "w").close()
        wrote = True
    except OSError:
        wrote = False
    read = os.path.exists("SECRET")
    name = "sourced-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("sourced.py", f"# wrote={wrote} read={read}")
        info = "sourced-1.0.dist-info/"
        metadata = ["Metadata-Version: 2.1", "Name: sourced", "Version: 1.0", ""]
        wheel.writestr(info + "METADATA", chr(10).join(metadata))
        tags = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
        wheel.writestr(info + "WHEEL", chr(10).join(tags))
        wheel.writestr(info + "RECORD", "")
    return name
"""


async def test_a_package_may_be_a_repository_at_a_ref(tmp_path: Path) -> None:
    source = tmp_path / "repo"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "sourced"\nversion = "1.0"\n'
    )
    (source / "backend.py").write_text(_BACKEND)
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for arguments in (
        ("init", "-q", "-b", "main"),
        ("add", "."),
        (*identity, "commit", "-q", "-m", "x"),
        ("tag", "v1"),
    ):
        await asyncio.to_thread(subprocess.run, ["git", *arguments], cwd=source, check=True)
    environment = await build_environment([f"sourced @ git+file://{source}@v1"])
    assert (site(environment) / "sourced.py").exists()


async def test_a_project_of_this_machine_is_built_in_a_copy(tmp_path: Path) -> None:
    source = tmp_path / "project"
    (source / ".venv").mkdir(parents=True)
    (source / "inner").mkdir()
    (source / ".venv" / "large").write_text("not needed")
    (source / "inner" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "sourced"\nversion = "1.0"\n'
    )
    # As setuptools does, it writes beside its sources.
    backend = _BACKEND.replace("    try:\n", '    open("beside", "w").close()\n    try:\n', 1)
    backend = backend.replace("SECRET", "../.venv/large")
    (source / "inner" / "backend.py").write_text(backend)
    environment = await build_environment([f"sourced @ file://{source}#subdirectory=inner"])
    assert "read=False" in (site(environment) / "sourced.py").read_text()
    assert not (source / "inner" / "beside").exists()


async def test_wheels_for_another_host_are_those_that_it_would_choose(
    index: Path, tmp_path: Path
) -> None:
    add_wheel(index, "sourced", "0.1")
    source = tmp_path / "sourced-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "sourced"\nversion = "1.0"\n'
    )
    (source / "backend.py").write_text(_BACKEND)
    shutil.make_archive(str(index / "sourced-1.0"), "gztar", tmp_path, "sourced-1.0")
    add_wheel(index, "compiled", requires=("sourced",))
    plain = index / "compiled-1.0-py3-none-any.whl"
    for tags in ("cp311-cp311-manylinux_2_28_aarch64", "cp311-cp311-manylinux_2_28_x86_64"):
        shutil.copy(plain, index / f"compiled-1.0-{tags}.whl")
    plain.unlink()
    there = {"python": "3.11", "machine": "aarch64", "libc": "2.36"}
    folder = tmp_path / "gathered"
    folder.mkdir()
    await collect_wheels(["compiled"], folder, there, on_progress=lambda _: None)
    assert sorted(path.name for path in folder.iterdir()) == [
        "compiled-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "sourced-1.0-py3-none-any.whl",
    ]
    older = {**there, "libc": "2.17"}
    with pytest.raises(PackageError, match="has no wheel that fits"):
        await collect_wheels(["compiled"], folder, older, on_progress=lambda _: None)


def test_what_a_build_planted_is_not_followed(tmp_path: Path) -> None:
    fetched, environment = tmp_path / "fetched", tmp_path / "env"
    target = tmp_path / "precious"
    target.mkdir()
    (fetched / "lib" / "pkg").mkdir(parents=True)
    (fetched / "lib" / "pkg" / "a.py").write_text("a")
    (fetched / "lib" / "linked").symlink_to(target)
    (fetched / "lib" / "file.py").symlink_to("/etc/passwd")
    (fetched / "pyvenv.cfg").write_text("home = /evil")
    (fetched / "bin").mkdir()
    (fetched / "bin" / "python3").write_text("evil")
    (fetched / "bin" / "tool").write_text("tool")
    (fetched / "bin" / "tool").chmod(0o4755)
    os.mkfifo(fetched / "lib" / "fifo")
    environment.mkdir()
    take_over(fetched, environment)
    taken = {str(p.relative_to(environment)) for p in environment.rglob("*") if not p.is_dir()}
    assert taken == {"lib/pkg/a.py", "bin/tool"}
    assert (environment / "bin/tool").stat().st_mode & 0o7777 == 0o755
    assert not list(target.iterdir())


async def test_old_environments_are_removed_some_day(index: Path) -> None:
    old = await build_environment(["idna"])
    os.utime(old, (0, 0))
    fresh = await build_environment(["packaging"])
    assert fresh.exists()
    assert not old.exists()
    assert (await build_environment(["idna"])).stat().st_mtime > time.time() - 60


def test_another_python_version_is_refused() -> None:
    check_python_version(None)
    check_python_version(f"{sys.version_info.major}.{sys.version_info.minor}")
    with pytest.raises(PackageError, match=r"python_version='3\.99'"):
        check_python_version("3.99")


async def test_system_packages_are_checked() -> None:
    await check_system_packages([])
    await check_system_packages(["dpkg", "bash"])
    with pytest.raises(PackageError) as caught:
        await check_system_packages(["bash", "no-such-package-x", "nor-this-one"])
    assert "apt install no-such-package-x nor-this-one" in str(caught.value)


async def test_without_dpkg_system_packages_cannot_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PackageError, match="dpkg-query"):
        await check_system_packages(["bash"])
