"""Repositories: fetched once, checked out at the ref, without showing tokens.

It prepares repositories itself, because these cases need no machine.
"""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from seer.environment import RepoConfig
from seer.environment.repos._repos import PreparedRepo, prepare_repo
from seer.errors import RepoError

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class Origin:
    """A repository with three commits, a branch and two tags."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.url = f"file://{folder}"
        git(folder, "init", "--quiet")
        self.commits = [self.commit(str(number)) for number in range(3)]
        git(folder, "tag", "light", self.commits[1])
        git(folder, "tag", "-a", "-m", "x", "annotated", self.commits[1])
        git(folder, "branch", "feature/x", self.commits[0])

    def commit(self, content: str) -> str:
        (self.folder / "file.txt").write_text(content)
        git(self.folder, "add", ".")
        git(self.folder, "commit", "--quiet", "-m", content)
        return git(self.folder, "rev-parse", "HEAD")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path / "origin")


async def prepare(origin: Origin, ref: str | None = None) -> PreparedRepo:
    return await prepare_repo(RepoConfig(origin.url, ref=ref))


def content(repo: PreparedRepo) -> str:
    return (repo.host_path / "file.txt").read_text()


async def test_without_a_ref_the_default_branch_is_taken(origin: Origin) -> None:
    repo = await prepare(origin)
    assert (repo.name, repo.commit) == ("origin", origin.commits[2])
    assert content(repo) == "2"


async def test_a_git_that_was_killed_does_not_lock_others_out(origin: Origin, cache: Path) -> None:
    await prepare(origin)
    (mirror,) = (cache / "seer" / "repos").glob("*/mirror.git")
    for name in ("shallow.lock", "packed-refs.lock"):
        (mirror / name).touch()
    origin.commit("later")
    assert content(await prepare(origin)) == "later"


@pytest.mark.parametrize(
    ("ref", "number"), [("main", 2), ("feature/x", 0), ("light", 1), ("annotated", 1)]
)
async def test_branches_and_tags_are_found(origin: Origin, ref: str, number: int) -> None:
    repo = await prepare(origin, ref)
    assert repo.commit == origin.commits[number]
    assert content(repo) == str(number)


async def test_commits_are_found_whole_and_abbreviated(origin: Origin) -> None:
    assert content(await prepare(origin, origin.commits[0])) == "0"
    assert content(await prepare(origin, origin.commits[1][:9])) == "1"


async def test_only_what_is_needed_is_fetched(origin: Origin) -> None:
    repo = await prepare(origin, "main")
    assert git(repo.host_path, "rev-list", "--all", "--count") == "1"


async def test_a_branch_is_checked_out_as_a_branch(origin: Origin) -> None:
    repo = await prepare(origin, "feature/x")
    assert git(repo.host_path, "branch", "--show-current") == "feature/x"
    assert git(repo.host_path, "status", "--porcelain") == ""
    assert git(repo.host_path, "remote", "get-url", "origin") == origin.url


async def test_a_checkout_shows_nothing_of_this_machine(origin: Origin, cache: Path) -> None:
    repo = await prepare(origin, "main")
    for path in repo.host_path.rglob("*"):
        if path.is_file():
            assert str(cache).encode() not in path.read_bytes()
            assert path.stat().st_mode & 0o444 == 0o444


async def test_a_known_commit_needs_no_server(origin: Origin) -> None:
    await prepare(origin, origin.commits[2])
    origin.folder.rename(origin.folder.with_name("gone"))
    assert (await prepare(origin, origin.commits[2])).commit == origin.commits[2]
    with pytest.raises(RepoError, match="no such repository"):
        await prepare(origin, "main")


async def test_a_branch_that_moved_is_followed(origin: Origin) -> None:
    before = await prepare(origin, "main")
    newest = origin.commit("3")
    after = await prepare(origin, "main")
    assert (before.commit, after.commit) == (origin.commits[2], newest)
    assert (content(before), content(after)) == ("2", "3")


async def test_equal_wishes_at_once_share_one_checkout(origin: Origin) -> None:
    repos = await asyncio.gather(*(prepare(origin, "main") for _ in range(4)))
    assert len({repo.host_path for repo in repos}) == 1
    drafts = [p for p in repos[0].host_path.parent.iterdir() if "draft" in p.name]
    assert not drafts


@pytest.mark.parametrize("ref", ["nope", "f" * 40, "abcdef12"])
async def test_an_unknown_ref_is_named(origin: Origin, ref: str) -> None:
    with pytest.raises(RepoError, match=ref):
        await prepare(origin, ref)


async def test_a_missing_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(RepoError, match="no such repository"):
        await prepare_repo(RepoConfig(str(tmp_path / "nothing")))


async def test_hooks_and_filters_of_the_user_are_not_run(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    hook = hooks / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f"[core]\n\thooksPath = {hooks}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert content(await prepare(origin, "main")) == "2"
    assert not (tmp_path / "ran").exists()


async def test_a_strict_umask_does_not_shut_the_sandbox_out(origin: Origin) -> None:
    old = os.umask(0o077)
    try:
        repo = await prepare(origin, "main")
    finally:
        os.umask(old)
    assert repo.host_path.stat().st_mode & 0o777 == 0o755
    assert (repo.host_path / "file.txt").stat().st_mode & 0o444 == 0o444


async def test_without_git_the_error_says_how_to_get_it(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RepoError, match="apt install git"):
        await prepare(origin)
