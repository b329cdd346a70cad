"""Where a vendor's agent process runs: an empty folder, a private home, its own environment.

Whatever the process could pick up by itself (settings, instructions, plugins, keys of other
services) is not there. The folder is gone when the run ends.
"""

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

logger = logging.getLogger(__name__)

_PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy")
_FROM_SDK = ("CLAUDE_CODE_ENTRYPOINT", "CLAUDE_AGENT_SDK_VERSION")


@dataclass
class Confinement:
    """A place prepared for one vendor's process."""

    folder: Path
    """The process's working folder; empty."""
    launcher: Path
    """What to start in place of the vendor's program."""
    _lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=30))

    def stderr(self, line: str) -> None:
        """Keep what the process says on its standard error."""
        self._lines.append(line)

    def kill(self) -> None:
        """End the process now; an SDK's own way to end it lets it go on for a while."""
        try:
            pid = int((self.launcher.parent / "pid").read_text(encoding="ascii"))
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError) as error:
            logger.debug("no agent process to end: %s", error)

    def said(self) -> str:
        """The process's last words, for an error message."""
        text = "\n".join(self._lines).strip()
        return f"; it said:\n{text[-2000:]}" if text else ""


@asynccontextmanager
async def confined(
    command: Sequence[str], *, env: Mapping[str, str], endpoints: Sequence[str]
) -> AsyncGenerator[Confinement, None]:
    """Prepare a place for `command`.

    Args:
        command: The vendor's program; the SDK's arguments are added.
        env: Variables for it, beside a short list of harmless ones.
        endpoints: The URLs it may reach.
    """
    root = Path(tempfile.mkdtemp(prefix="seer-agent-"))
    try:
        folder, home, start = root / "work", root / "home", root / "start"
        for path in (folder, home, start, root / "tmp"):
            path.mkdir(mode=0o700)
        (start / "python").symlink_to(sys.executable)
        here = Path(__file__).parent
        shutil.copyfile(here / "_launch.py", start / "launch.py")
        launcher = start / "launch"
        shutil.copyfile(here / "_launch.sh", launcher)
        launcher.chmod(0o700)
        variables = {
            **{name: os.environ[name] for name in (*_PASSED, *_PROXIES) if name in os.environ},
            "HOME": str(home),
            "TMPDIR": str(root / "tmp"),
            "XDG_CONFIG_HOME": str(home / ".config"),
            **env,
        }
        plan = {"argv": list(command), "env": variables, "pass": _FROM_SDK, "cwd": str(folder)}
        path = start / "launch.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(plan), encoding="utf-8")
        yield Confinement(folder=folder, launcher=launcher)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(root, ignore_errors=True))
