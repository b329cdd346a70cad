"""Git repositories for a sandbox: one cached mirror per address, one clean checkout per commit.

Cloning runs no code of the repository (no hooks, filters or submodules), so it happens on the
host; a repository's `install` command runs later, inside the sandbox. Checkouts are shared and
meant to be mounted read-only, or copied.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from seer._paths import cache_dir
from seer._transient import TransientFolder
from seer.environment._cache import locked
from seer.environment._process import run_program
from seer.environment._secrets import Secrets, load_secrets
from seer.environment.config._config import RepoConfig
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
    commit: str


async def prepare_repo(config: RepoConfig) -> PreparedRepo:
    """Fetch as little of a repository as its server allows, and check it out.

    Raises:
        RepoError: It could not be fetched, or has no such ref; the message has git's output.
        SecretMissingError: The secret for it is not set.
    """
    if shutil.which("git") is None:
        raise RepoError("git is not installed; install it with: apt install git")
    url = clone_url(config.url)
    secrets = load_secrets([config.token_secret] if config.token_secret else [], required=True)
    token = secrets.get(config.token_secret or "")
    folder = cache_dir() / "repos" / hashlib.sha256(url.encode()).hexdigest()[:24]
    async with locked(folder.with_suffix(".lock")):
        with _Git(url, token, secrets) as git:
            fetcher = _Mirror(git, folder / "mirror.git", config)
            commit, branch = await fetcher.fetch()
            checkout = folder / (commit if branch is None else f"{commit}-{_slug(branch)}")
            if not checkout.is_dir():
                await _check_out(git, fetcher.path, checkout, commit, branch)
    logger.info("repo %s: at commit %s", config.name, commit)
    return PreparedRepo(host_path=checkout, name=config.name, commit=commit)


class _Mirror:
    """The bare repository that holds everything fetched from one address so far."""

    def __init__(self, git: "_Git", path: Path, config: RepoConfig) -> None:
        self._git = git
        self.path = path
        self._config = config

    async def fetch(self) -> tuple[str, str | None]:
        """Fetch the ref. Returns its commit, and its name if it is a branch."""
        if not self.path.is_dir():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TransientFolder("draft", inside=self.path.parent) as draft:
                await self._git.run("init", "--quiet", "--bare", "--template=", ".", cwd=draft)
                draft.rename(self.path)
        for left in self.path.glob("*.lock"):
            # A killed git left it: every user of the mirror holds Seer's own lock.
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
        # The ref may be an abbreviated commit, or neither a branch nor a tag.
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
        """Like `_fetch_ref`, but returns None if the server has no such ref."""
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
            # Some servers send only branches and tags, so fetch all of them.
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
        """Give a commit its own ref, so that garbage collection keeps it."""
        commit = await self._resolve(name)
        if commit is None:
            raise RepoError(f"repo {self._git.url!r}: {name!r} is not a commit")
        await self._git.run("update-ref", f"refs/seer/kept/{commit}", commit, cwd=self.path)
        return commit


_FETCH = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph")


async def _check_out(
    git: "_Git", mirror: Path, target: Path, commit: str, branch: str | None
) -> None:
    """Make a checkout in a temporary folder, then rename it."""
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


# --- git ------------------------------------------------------------------------------------------

_QUIET = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0"),
    *(
        "-c",
        "http.lowSpeedLimit=100",
        "-c",
        "http.lowSpeedTime=60",
        "-c",
        "advice.detachedHead=false",
    ),
)
_ASKPASS = """#!/bin/sh
# Answers git's questions for one host only, so that a redirect cannot take the token elsewhere.
case "$1" in
  "Username for '$SEER_GIT_ORIGIN'"*) echo x-access-token ;;
  "Password for '$SEER_GIT_ANSWER'"*) cat "/proc/self/fd/$SEER_GIT_TOKEN_FD" ;;
  *) exit 1 ;;
esac
"""


_KEPT = {
    *("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_NO_VERIFY", "GIT_SSH", "GIT_SSH_COMMAND"),
    *("GIT_PROXY_COMMAND", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"),
}
"""The user's GIT_ variables that git gets. Others (GIT_DIR, GIT_TRACE, ...) would mislead it."""


_BARE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
"""Git without the user's and the system's configuration."""


class _Git:
    """Runs git for one address, with its token if it has one. Use it as a context manager."""

    def __init__(
        self,
        url: str,
        token: str | None,
        secrets: Secrets,
    ) -> None:
        self.url = url
        self._secrets = secrets
        self._token = token
        self._stack = contextlib.ExitStack()
        self._env: dict[str, str] = {}
        self._fds: tuple[int, ...] = ()
        self._options: tuple[str, ...] = _QUIET

    def __enter__(self) -> "_Git":
        mine = {k: v for k, v in os.environ.items() if k not in self._secrets.names}
        kept = {k: v for k, v in mine.items() if not k.startswith("GIT_") or k in _KEPT}
        self._env = kept | {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "LC_ALL": "C",
        }
        self._env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
        if self._token is not None:
            self._offer_token(self._token)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _offer_token(self, token: str) -> None:
        """Pass the token through a descriptor.

        This keeps it out of files, process lists, environments, logs and errors.
        """
        fd = os.memfd_create("seer-token", 0)
        self._stack.callback(os.close, fd)
        os.write(fd, token.encode() + b"\n")
        folder = self._stack.enter_context(TransientFolder("git"))
        script = folder / "askpass"
        script.write_text(_ASKPASS)
        script.chmod(0o700)
        parts = urlsplit(self.url)
        self._fds = (fd,)
        self._env |= {
            "GIT_ASKPASS": str(script),
            "SEER_GIT_ORIGIN": f"{parts.scheme}://{parts.netloc}",
            "SEER_GIT_ANSWER": f"{parts.scheme}://x-access-token@{parts.netloc}",
            "SEER_GIT_TOKEN_FD": str(fd),
        }
        # The user's credential helper would be asked to store the token.
        self._options = (*_QUIET, "-c", "credential.helper=")

    async def run(self, *arguments: str, cwd: Path) -> str:
        """Run git and return its output.

        Raises:
            RepoError: Git failed.
        """
        code, out, err = await self.attempt(*arguments, cwd=cwd)
        if code != 0:
            raise self.error(err or out)
        return out

    async def attempt(self, *arguments: str, cwd: Path) -> tuple[int, str, str]:
        """Run git and return its exit code, output and errors.

        The user's configuration applies only to a fetch from the server. During a checkout, the
        repository's attributes could select filters from that configuration, and so run the user's
        programs on its files.
        """
        env = self._env if self.url in arguments and arguments[0] == "fetch" else self._env | _BARE
        ended = await run_program(
            ["git", *self._options, *arguments],
            env=env,
            cwd=cwd,
            pass_fds=self._fds,
        )
        return ended.exit_code, ended.stdout.strip(), ended.stderr.strip()

    def error(self, words: str) -> RepoError:
        """Git's failure as an error that says what to do."""
        lower = words.lower()
        if "could not read username" in lower or "authentication failed" in lower:
            advice = "the server requires a login; name a valid token in RepoConfig.token_secret"
        elif "error: 403" in lower or "permission denied" in lower:
            advice = "access was refused; check what the token or key may do"
        elif "not found" in lower or "does not exist" in lower or "not appear to be" in lower:
            advice = "no such repository (or a private one: name a token in token_secret)"
        elif "could not resolve" in lower or "unable to access" in lower or "timed out" in lower:
            advice = "the server could not be reached; check the network and the address"
        else:
            advice = "git failed"
        said = self._secrets.redact(words)[-2000:]
        return RepoError(f"repo {self.url!r}: {advice}\n{said}")
