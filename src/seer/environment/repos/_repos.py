"""Git repositories for a sandbox: one cached mirror per address, one clean checkout per commit.

Cloning runs no code of the repository (no hooks, filters or submodules), so it happens on the
host; a repository's `install` command runs later, inside the sandbox. Checkouts are shared and
meant to be mounted read-only, or copied.
"""

import asyncio
import hashlib
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seer._places import cache_dir
from seer._transient import TransientFolder
from seer.environment._cache import locked
from seer.environment._secrets import load_secrets
from seer.environment.config._config import RepoConfig
from seer.environment.repos._git import Git
from seer.environment.repos._url import clone_url
from seer.errors import RepoError

logger = logging.getLogger(__name__)

_FULL_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PreparedRepo:
    """A repository on this machine, checked out at one commit."""

    host_path: Path
    """The checkout, with its `.git`. Shared: never write to it."""
    name: str
    ref: str | None
    """What was asked for."""
    commit: str


async def prepare_repo(
    config: RepoConfig, *, on_progress: Callable[[str], None] | None = None
) -> PreparedRepo:
    """Fetch a repository, as little of it as its server allows, and check it out.

    Args:
        config: Which one, and at which ref.
        on_progress: Called with git's own progress lines.

    Raises:
        RepoError: It could not be fetched or has no such ref; the message has git's words.
        SecretMissingError: The secret for it is not set.
    """
    if shutil.which("git") is None:
        raise RepoError("git is not installed; install it with: apt install git")
    url = clone_url(config.url)
    secrets = load_secrets([config.token_secret] if config.token_secret else [], required=True)
    token = secrets.get(config.token_secret or "")
    folder = cache_dir() / "repos" / hashlib.sha256(url.encode()).hexdigest()[:24]
    async with locked(folder.with_suffix(".lock")):
        with Git(url, token, secrets, on_progress) as git:
            fetcher = _Mirror(git, folder / "mirror.git", config)
            commit, branch = await fetcher.fetch()
            checkout = folder / (commit if branch is None else f"{commit}-{_slug(branch)}")
            if not checkout.is_dir():
                await _check_out(git, fetcher.path, checkout, commit, branch)
    logger.info("repo %s: at commit %s", config.name, commit)
    return PreparedRepo(host_path=checkout, name=config.name, ref=config.ref, commit=commit)


class _Mirror:
    """The bare repository that holds what was fetched from one address so far."""

    def __init__(self, git: Git, path: Path, config: RepoConfig) -> None:
        self._git = git
        self.path = path
        self._config = config

    async def fetch(self) -> tuple[str, str | None]:
        """Make sure that the ref is here. Its commit, and the branch if it is one."""
        if not self.path.is_dir():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TransientFolder("draft", inside=self.path.parent) as draft:
                await self._git.run("init", "--quiet", "--bare", "--template=", ".", cwd=draft)
                draft.rename(self.path)
        for left in self.path.glob("*.lock"):
            # Left by a git that was killed: every user of the mirror holds our own lock on it.
            left.unlink(missing_ok=True)
        ref = self._config.ref
        if ref is None:
            return await self._fetch_ref("HEAD"), None
        if _FULL_COMMIT.fullmatch(ref):
            return await self._fetch_commit(ref), None
        for full, branch in ((f"refs/heads/{ref}", ref), (f"refs/tags/{ref}", None)):
            found = await self._try_ref(full)
            if found is not None:
                return found, branch
        # Perhaps an abbreviated commit, or a ref outside of branches and tags.
        if re.fullmatch(r"[0-9a-f]{4,39}", ref):
            await self._fetch_all()
            found = await self._resolve(ref)
            if found is not None:
                return await self._keep(found), None
        else:
            found = await self._try_ref(ref)
            if found is not None:
                return found, None
        raise RepoError(
            f"repo {self._git.url!r}: has no branch, tag or commit {ref!r}; check RepoConfig.ref"
        )

    async def _fetch_ref(self, ref: str) -> str:
        await self._git.run(*_FETCH, "--depth=1", self._git.url, f"+{ref}", cwd=self.path)
        return await self._keep("FETCH_HEAD")

    async def _try_ref(self, ref: str) -> str | None:
        """As `_fetch_ref`, but None where the server knows no such ref."""
        code, _, err = await self._git.attempt(
            *_FETCH, "--depth=1", self._git.url, f"+{ref}", cwd=self.path
        )
        if code == 0:
            return await self._keep("FETCH_HEAD")
        if "couldn't find remote ref" in err:
            return None
        raise self._git.error(err)

    async def _fetch_commit(self, commit: str) -> str:
        if await self._resolve(commit) == commit:
            return commit
        code, _, err = await self._git.attempt(
            *_FETCH, "--depth=1", self._git.url, commit, cwd=self.path
        )
        if code != 0:
            # Some servers give out branches and tags only; then all of them are needed.
            logger.info("repo %s: fetching everything (%s)", self._config.name, err[-200:])
            await self._fetch_all()
        if await self._resolve(commit) != commit:
            raise RepoError(f"repo {self._git.url!r}: has no commit {commit!r}")
        return await self._keep(commit)

    async def _fetch_all(self) -> None:
        shallow = (self.path / "shallow").exists()
        await self._git.run(
            *_FETCH,
            *(["--unshallow"] if shallow else []),
            self._git.url,
            "+refs/heads/*:refs/seer/heads/*",
            "+refs/tags/*:refs/seer/tags/*",
            cwd=self.path,
        )

    async def _resolve(self, name: str) -> str | None:
        code, out, _ = await self._git.attempt(
            "rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}",
            cwd=self.path,
        )  # fmt: skip
        return out if code == 0 else None

    async def _keep(self, name: str) -> str:
        """Give a commit a ref of its own, so that a clean-up keeps it."""
        commit = await self._resolve(name)
        if commit is None:
            raise RepoError(f"repo {self._git.url!r}: {name!r} is not a commit")
        await self._git.run("update-ref", f"refs/seer/kept/{commit}", commit, cwd=self.path)
        return commit


_FETCH = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph")


async def _check_out(git: Git, mirror: Path, target: Path, commit: str, branch: str | None) -> None:
    """Make a checkout in a temporary folder, then give it its name."""
    with TransientFolder("draft", inside=target.parent) as draft:
        await git.run("init", "--quiet", "--template=", ".", cwd=draft)
        kept = f"refs/seer/kept/{commit}"
        await git.run(*_FETCH, "--update-shallow", str(mirror), kept, cwd=draft)
        where = ["--detach", commit] if branch is None else ["-B", branch, commit]
        await git.run("checkout", "--quiet", *where, "--", cwd=draft)
        await git.run("remote", "add", "origin", git.url, cwd=draft)
        await asyncio.to_thread(_tidy, draft)
        await asyncio.to_thread(draft.rename, target)


def _tidy(checkout: Path) -> None:
    """Remove this machine's paths from `.git`, and let the sandbox's user read everything."""
    for name in ("FETCH_HEAD", "ORIG_HEAD"):
        (checkout / ".git" / name).unlink(missing_ok=True)
    shutil.rmtree(checkout / ".git" / "logs", ignore_errors=True)
    for parent, folders, names in os.walk(checkout):
        for path in (Path(parent, name) for name in (*folders, *names)):
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))
    checkout.chmod(0o755)


def _slug(branch: str) -> str:
    return hashlib.sha256(branch.encode()).hexdigest()[:8]
