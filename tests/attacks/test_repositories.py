"""Repositories whose configuration, attributes, submodules and links attack the host.

It prepares repositories itself, because the attack ends before a machine starts.
"""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from seer.environment import RepoConfig
from seer.environment.repos._repos import prepare_repo
from seer.errors import ConfigError, RepoError

pytestmark = pytest.mark.full

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that code of the repository makes if it ever runs."""
    return tmp_path / "code-ran"


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, and a home and cache of the test's own."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    (tmp_path / "home").mkdir()
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet")
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "-m", "x", "--allow-empty")


def check_out(origin: Path) -> Path:
    return asyncio.run(prepare_repo(RepoConfig(f"file://{origin}"))).host_path


def test_attributes_start_the_filters_of_the_users_configuration(
    origin: Path, marker: Path, tmp_path: Path
) -> None:
    settings = [f'[filter "{name}"]\n' for name in ("lfs", "mine")]
    text = "".join(
        f'{head}\tsmudge = "touch {marker}; cat"\n\trequired\n\tclean = cat\n' for head in settings
    )
    (tmp_path / "home" / ".gitconfig").write_text(text + "[submodule]\n\trecurse = true\n")
    (origin / ".gitattributes").write_text("*.a filter=mine\n*.b filter=lfs\n")
    (origin / ".lfsconfig").write_text(f"[lfs]\n\turl = file://{tmp_path}\n")
    (origin / "x.a").write_text("a")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1\n"
    (origin / "x.b").write_text(pointer)
    commit(origin)
    marker.unlink(missing_ok=True)
    checkout = check_out(origin)
    assert (checkout / "x.a").read_text() == "a"
    assert (checkout / "x.b").read_text() == pointer
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["ext", "file", "climbing", "option"])
def test_submodules_run_commands_or_fetch_files_of_the_host(
    origin: Path, marker: Path, tmp_path: Path, kind: str
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    git(private, "init", "--quiet")
    (private / "secret").write_text("of the host")
    commit(private)
    url = {
        "ext": f"ext::sh -c touch% {marker}",
        "file": f"file://{private}",
        "climbing": "../private",
        "option": f"--upload-pack=touch {marker}",
    }[kind]
    (origin / ".gitmodules").write_text(
        f'[submodule "m"]\n\tpath = m\n\turl = {url}\n\tupdate = !touch {marker}\n'
    )
    head = git(private, "rev-parse", "HEAD")
    git(origin, "update-index", "--add", "--cacheinfo", f"160000,{head},m")
    git(origin, "add", ".gitmodules")
    git(origin, "commit", "--quiet", "-m", "x")
    checkout = check_out(origin)
    assert not marker.exists()
    assert not list((checkout / "m").iterdir())
    assert "of the host" not in {p.read_text() for p in checkout.iterdir() if p.is_file()}


def test_links_of_a_repository_lead_the_host_elsewhere(origin: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / "key").write_text("secret")
    (target / "key").chmod(0o600)
    (origin / "folder").symlink_to(target)
    (origin / "file").symlink_to(target / "key")
    commit(origin)
    checkout = check_out(origin)
    assert (checkout / "folder").is_symlink()
    assert (target / "key").stat().st_mode & 0o777 == 0o600
    assert target.stat().st_mode & 0o777 == 0o700


def test_a_tree_writes_through_a_link_or_into_git(
    origin: Path, marker: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {marker}\n")
    blob = git(origin, "hash-object", "-w", str(script))
    for name in (".git", "..", ".GIT"):
        inner = _tree(origin, f"100755 blob {blob}\tpost-checkout\n")
        hooks = _tree(origin, f"040000 tree {inner}\thooks\n")
        top = _tree(origin, f"040000 tree {hooks}\t{name}\n")
        head = git(origin, "commit-tree", top, "-m", "x")
        git(origin, "update-ref", "refs/heads/main", head)
        try:
            checkout = check_out(origin)
        except RepoError:
            continue  # git itself refuses this tree
        assert name == ".GIT", "only a name that is no special one here may be checked out"
        assert not (checkout / ".git" / "hooks" / "post-checkout").exists()
    assert not marker.exists()
    assert not (tmp_path / "xdg_cache_home" / "seer" / "hooks").exists()


def _tree(folder: Path, listing: str) -> str:
    done = subprocess.run(
        ["git", "mktree"], input=listing, cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_local_repository_is_set_up_to_run_commands(origin: Path, marker: Path) -> None:
    (origin / "x").write_text("x")
    commit(origin)
    hooks = origin / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-upload-pack", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (hooks / name).chmod(0o755)
    config = origin / ".git" / "config"
    config.write_text(
        config.read_text()
        + f"[core]\n\tfsmonitor = touch {marker}\n\tsshCommand = touch {marker}\n"
        + f"\tpager = touch {marker}\n"
        + f'[uploadpack]\n\tpackObjectsHook = "touch {marker}; git pack-objects"\n'
        + f'[filter "x"]\n\tsmudge = "touch {marker}; cat"\n'
    )
    checkout = check_out(origin)
    assert (checkout / "x").read_text() == "x"
    assert not marker.exists()
    assert "smudge" not in (checkout / ".git" / "config").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to somebody else")
def test_a_repository_of_an_agents_borrows_objects_of_another(origin: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    git(private, "init", "--quiet")
    (private / "secret").write_text("of the host")
    commit(private)
    head = git(private, "rev-parse", "HEAD")
    commit(origin)
    (origin / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    (origin / ".git/refs/heads/main").write_text(f"{head}\n")
    for path in (origin, *origin.rglob("*")):
        os.chown(path, 60706, 60706)
    with pytest.raises(RepoError):
        check_out(origin)
    assert not list((tmp_path / "xdg_cache_home").rglob("secret"))


@pytest.mark.parametrize(
    "url",
    ["ext::sh -c id", "--upload-pack=id", "ssh://-oProxyCommand=id/x", "fd::17/x", "a::b://c/d"],
)
def test_an_address_is_an_option_or_a_command(url: str) -> None:
    with pytest.raises(ConfigError):
        RepoConfig(url)
