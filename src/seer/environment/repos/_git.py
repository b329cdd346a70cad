"""Run git for one address on the host, with its token where there is one.

The token reaches git through a descriptor. It is in no file, process list, environment, log line
or error.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from seer._transient import TransientFolder
from seer.environment._process import run_program
from seer.environment._secrets import Secrets
from seer.errors import RepoError

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
# Answers git's questions for one host only: a redirect must not carry the token elsewhere.
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
"""Settings of the user's that stay; the rest (GIT_DIR, GIT_TRACE, ...) would lead git astray."""


_BARE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
"""Git without the user's and the system's configuration."""


class Git:
    """Runs git for one address, with its token where there is one. Use as a context manager."""

    def __init__(
        self,
        url: str,
        token: str | None,
        secrets: Secrets,
        on_progress: Callable[[str], None] | None,
    ) -> None:
        self.url = url
        self._secrets = secrets
        self._on_progress = on_progress
        self._token = token
        self._stack = contextlib.ExitStack()
        self._env: dict[str, str] = {}
        self._fds: tuple[int, ...] = ()
        self._options: tuple[str, ...] = _QUIET

    def __enter__(self) -> "Git":
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
        """Through a descriptor: neither a file, the process list nor an environment shows it."""
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
        # A credential helper of the user's would be asked to store the token.
        self._options = (*_QUIET, "-c", "credential.helper=")

    async def run(self, *arguments: str, cwd: Path) -> str:
        """Run git; its output.

        Raises:
            RepoError: It failed.
        """
        code, out, err = await self.attempt(*arguments, cwd=cwd)
        if code != 0:
            raise self.error(err or out)
        return out

    async def attempt(self, *arguments: str, cwd: Path) -> tuple[int, str, str]:
        """Run git; how it ended.

        The user's configuration counts where git speaks to the address. Elsewhere it does not:
        a repository's attributes choose among the filters that are configured, so a checkout could
        start programs of the user's on files of the repository's.
        """
        env = self._env if self.url in arguments and arguments[0] == "fetch" else self._env | _BARE
        ended = await run_program(
            ["git", *self._options, *arguments],
            env=env,
            cwd=cwd,
            pass_fds=self._fds,
            on_stderr=self._on_progress,
        )
        return ended.exit_code, ended.stdout.strip(), ended.stderr.strip()

    def error(self, words: str) -> RepoError:
        """Git's failure, with what to do about it."""
        lower = words.lower()
        if "could not read username" in lower or "authentication failed" in lower:
            advice = "the server wants a login; name a valid token in RepoConfig.token_secret"
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
