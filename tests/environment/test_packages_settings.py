"""The user's pip and uv settings for uv, and the packages that are installed beside Seer.

It reads the settings for uv, which no public function shows.
"""

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from seer.environment.packages import _installed
from seer.environment.packages._indexes import IndexSettings, read_index_settings
from seer.environment.packages._installed import (
    Installed,
    fingerprint,
    installed_packages,
    link_package,
    write_stubs,
)

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def read(home: Path, environ: Mapping[str, str] | None = None) -> IndexSettings:
    # The machine's own pip.conf must not leak into the tests.
    return read_index_settings({"PIP_CONFIG_FILE": os.devnull, **(environ or {})}, home=home)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_settings_the_default_index_is_on_the_network(home: Path) -> None:
    settings = read(home)
    assert settings.online
    assert not settings.env
    assert not settings.paths


def test_pips_settings_are_translated(home: Path, tmp_path: Path) -> None:
    cert = write(tmp_path / "ca.pem", "x")
    links = tmp_path / "wheels"
    links.mkdir()
    config = write(
        tmp_path / "pip.conf",
        f"[global]\nindex-url = https://one.example/simple\n"
        f"extra_index_url =\n  https://two.example/simple\n  file://{tmp_path}/pypi/simple\n"
        f"cert = {cert}\ntrusted-host = one.example\nproxy = http://proxy.example:1\n"
        f"[install]\nfind-links = {links}\nclient-cert = /no/such\n",
    )
    (tmp_path / "pypi" / "simple").mkdir(parents=True)
    settings = read(home, {"PIP_CONFIG_FILE": str(config)})
    assert settings.env == {
        "UV_DEFAULT_INDEX": "https://one.example/simple",
        "UV_INDEX": f"https://two.example/simple file://{tmp_path}/pypi/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INSECURE_HOST": "one.example",
        "SSL_CERT_FILE": str(cert),
        "SSL_CLIENT_CERT": "/no/such",
        "HTTP_PROXY": "http://proxy.example:1",
        "HTTPS_PROXY": "http://proxy.example:1",
    }
    assert settings.find_links == (str(links),)
    assert set(settings.paths) == {tmp_path / "pypi", links}
    assert settings.online
    assert settings.remotes == ("https://two.example/simple", "https://one.example/simple")
    # Code that runs in a build sees the address of the index, but not the login.
    assert set(settings.build_env) == {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY"}


def test_pips_variables_override_its_files(home: Path) -> None:
    write(home / ".config/pip/pip.conf", "[global]\nindex-url = https://file.example/simple\n")
    environ = {"PIP_CONFIG_FILE": "", "PIP_INDEX_URL": "https://env.example/simple"}
    assert read(home, environ).env["UV_DEFAULT_INDEX"] == "https://env.example/simple"


def test_later_files_override_earlier_ones(home: Path) -> None:
    write(home / ".pip/pip.conf", "[global]\nindex-url = https://old.example/simple\n")
    write(home / ".config/pip/pip.conf", "[global]\nindex-url = https://new.example/simple\n")
    settings = read_index_settings({}, home=home)
    assert settings.env["UV_DEFAULT_INDEX"] == "https://new.example/simple"


def test_without_an_index_nothing_is_online(home: Path, tmp_path: Path) -> None:
    settings = read(home, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)})
    assert settings.no_index
    assert not settings.online
    assert settings.paths == (tmp_path,)
    remote = read(home, {"UV_NO_INDEX": "true", "UV_FIND_LINKS": "https://links.example/"})
    assert remote.no_index
    assert remote.online
    assert not read(home, {"UV_OFFLINE": "1"}).online


def test_an_index_of_files_needs_no_network(home: Path, tmp_path: Path) -> None:
    settings = read(home, {"UV_DEFAULT_INDEX": f"file://{tmp_path}"})
    assert not settings.online
    assert settings.paths == (tmp_path,)


def test_uvs_own_settings_keep_pips_away(home: Path) -> None:
    environ = {
        "UV_INDEX": "inner=https://uv.example/simple",
        "PIP_INDEX_URL": "https://pip.example",
    }
    settings = read(home, environ)
    assert settings.env == {"UV_INDEX": "inner=https://uv.example/simple"}
    assert settings.online


def test_uvs_files_are_used(home: Path, tmp_path: Path) -> None:
    file = write(
        home / ".config/uv/uv.toml",
        f'[[index]]\nurl = "file://{tmp_path}"\ndefault = true\n[pip]\nfind-links = ["{home}"]\n',
    )
    settings = read(home, {"PIP_INDEX_URL": "https://pip.example"})
    assert file in settings.config_files
    assert set(settings.paths) == {tmp_path, home}
    assert "UV_DEFAULT_INDEX" not in settings.env
    assert not settings.online
    other = write(tmp_path / "other.toml", 'index-url = "https://x.example/simple"\n')
    assert read(home, {"UV_CONFIG_FILE": str(other)}).config_files == (other,)
    assert read(home, {"UV_NO_CONFIG": "1"}).config_files == ()
    third = write(tmp_path / "third.toml", "offline = false\n")
    assert read(home, {"UV_CONFIG_FILE": str(third)}).online
    fourth = write(tmp_path / "fourth.toml", f'no-index = true\nfind-links = ["{home}"]\n')
    assert read(home, {"UV_CONFIG_FILE": str(fourth)}).paths == (home,)


def test_only_settings_that_concern_packages_are_passed_on(home: Path) -> None:
    environ = {
        "HTTPS_PROXY": "http://p",
        "no_proxy": "x",
        "UV_INDEX_INNER_PASSWORD": "pw",
        "UV_CACHE_DIR": "/elsewhere",
        "AWS_SECRET_ACCESS_KEY": "s",
        "HF_TOKEN": "t",
        "SSL_CERT_FILE": "/no/such/file",
    }
    settings = read(home, environ)
    assert set(settings.env) == {
        *("HTTPS_PROXY", "no_proxy", "UV_INDEX_INNER_PASSWORD", "SSL_CERT_FILE"),
    }
    assert not settings.paths


def test_netrc_is_reduced_to_the_indexes(home: Path) -> None:
    write(
        home / ".netrc",
        "machine index.example login a password b\nmachine bank.example login c password d\n",
    ).chmod(0o600)
    index = {"UV_DEFAULT_INDEX": "https://index.example/simple"}
    assert read(home, index).logins == {"index.example": ("a", "b")}
    write(home / ".netrc", "nonsense {{{").chmod(0o600)
    assert read(home, index).logins == {}


def test_logins_come_from_addresses_and_from_variables_for_named_indexes(home: Path) -> None:
    environ = {
        "UV_DEFAULT_INDEX": "https://me:p%40ss@one.example:8443/simple",
        "UV_INDEX": "my-inner=https://two.example/simple",
        "UV_INDEX_MY_INNER_USERNAME": "you",
        "UV_INDEX_MY_INNER_PASSWORD": "word",
    }
    settings = read(home, environ)
    assert settings.logins == {
        "one.example:8443": ("me", "p@ss"),
        "two.example": ("you", "word"),
    }
    assert set(settings.build_env) == {"UV_DEFAULT_INDEX", "UV_INDEX"}


def test_credentials_in_addresses_are_hidden(home: Path) -> None:
    assert read(home).hide("see https://me:pw@host/x") == "see https://host/x"


# --- what is installed --------------------------------------------------------------------------


class Site:
    """A fake environment with packages in it."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.folder = prefix / "lib" / VERSION / "site-packages"
        self.folder.mkdir(parents=True)

    def add(self, name: str, files: Mapping[str, str], **info: str) -> None:
        dist_info = f"{name}-1.0.dist-info"
        listed = {
            **files,
            f"{dist_info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            **{f"{dist_info}/{key.replace('__', '.')}": text for key, text in info.items()},
        }
        for path, text in listed.items():
            write(self.folder / path, text)
        record = "".join(f"{path},,\n" for path in [*listed, f"{dist_info}/RECORD"])
        write(self.folder / dist_info / "RECORD", record)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path / "venv")

    def folders() -> tuple[Path, ...]:
        return (made.folder,)

    monkeypatch.setattr(_installed, "site_folders", folders)
    return made


def test_ordinary_packages_can_be_taken_over(site: Site) -> None:
    site.add("Some_Pkg", {"pkg/__init__.py": "x = 1"})
    found = installed_packages()
    assert set(found) == {"some-pkg"}
    assert found["some-pkg"].pin == "some-pkg==1.0"


def test_seer_its_aliases_and_checkouts_cannot(site: Site) -> None:
    site.add("seer", {"seer/__init__.py": ""})
    site.add("anything", {"src/environment.py": ""})
    site.add("other", {"interp_infra.py": ""})
    site.add("edited", {"e.py": ""}, direct_url__json='{"dir_info": {"editable": true}}')
    site.add("linked", {"linked.pth": "/home/me/checkout/src\n"})
    site.add("fine", {"fine.pth": "import os\n", "deep/x.pth": "/not/read\n"})
    write(site.folder / "norecord-1.0.dist-info/METADATA", "Name: norecord\nVersion: 1.0\n")
    assert set(installed_packages()) == {"fine"}


def test_the_fingerprint_follows_what_is_installed(site: Site) -> None:
    before = fingerprint()
    site.add("new", {"new.py": ""})
    assert fingerprint() != before


def package(site: Site) -> Installed:
    (found,) = installed_packages().values()
    return found


def test_a_stub_has_the_metadata_and_no_content(site: Site, tmp_path: Path) -> None:
    site.add("some.pkg", {"pkg.py": "x = 1"})
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    write_stubs([package(site)], stubs)
    with zipfile.ZipFile(stubs / "some_pkg-1.0-py3-none-any.whl") as wheel:
        assert "Name: some.pkg" in wheel.read("some_pkg-1.0.dist-info/METADATA").decode()
        assert not [name for name in wheel.namelist() if name.endswith(".py")]


def test_files_are_linked_and_scripts_are_written_anew(site: Site, tmp_path: Path) -> None:
    site.add(
        "tool",
        {
            "tool/__init__.py": "def main(): ...",
            "tool/__pycache__/__init__.cpython-311.pyc": "compiled",
            "../../../bin/tool": f"#!{site.prefix}/bin/python\n",
            "../../../share/tool/data.txt": "data",
            "../../../../outside.txt": "not ours",
        },
        entry_points__txt="[console_scripts]\ntool = tool:main\n[other]\nx = tool:main\n",
        direct_url__json='{"url": "file:///home/me/tool.whl"}',
    )
    (site.folder / "tool/__pycache__/__init__.cpython-311.pyc").unlink()
    environment = tmp_path / "env"
    assert link_package(package(site), environment) == 0
    linked = environment / "lib" / VERSION / "site-packages/tool/__init__.py"
    assert linked.stat().st_ino == (site.folder / "tool/__init__.py").stat().st_ino
    assert (environment / "share/tool/data.txt").read_text() == "data"
    script = (environment / "bin/tool").read_text()
    assert str(site.prefix) not in script
    assert "from tool import main" in script
    assert not (environment / "bin/x").exists()
    assert not list(environment.rglob("direct_url.json"))
    assert not list(tmp_path.glob("env/**/outside.txt"))
    # Linking a file again, as for one that two packages share, changes nothing.
    assert link_package(package(site), environment) == 0


def test_where_links_are_impossible_files_are_copied(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    site.add("pkg", {"pkg.py": "x = 1", "run.sh": "#!/bin/sh"})
    (site.folder / "run.sh").chmod(0o700)
    monkeypatch.setattr(os, "link", refuse)
    environment = tmp_path / "env"
    assert link_package(package(site), environment) > 0
    copied = environment / "lib" / VERSION / "site-packages"
    assert (copied / "pkg.py").read_text() == "x = 1"
    assert (copied / "run.sh").stat().st_mode & 0o777 == 0o755
    assert link_package(package(site), environment) == 0


def test_a_package_with_a_missing_file_cannot_be_taken_over(site: Site, tmp_path: Path) -> None:
    site.add("pkg", {"pkg.py": "x = 1"})
    (site.folder / "pkg.py").unlink()
    with pytest.raises(FileNotFoundError):
        link_package(package(site), tmp_path / "env")
