"""Download a model from the hub, and explain failures.

The hub's library does the work, in a separate program (`_fetch`).
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from seer.environment._process import run_program
from seer.environment.models import _fetch
from seer.environment.packages._assemble import site_packages
from seer.errors import ModelError

logger = logging.getLogger(__name__)

OnBytes = Callable[[int, int], None]
"""Called with the number of bytes done and the total."""

_REFUSALS = ("unknown", "revision", "gated", "token")
"""Answers of the hub that a retry does not change."""


async def look_up(name: str, revision: str, *, token: str | None) -> None:
    """Ask the hub whether a model can be downloaded, without downloading it.

    If the hub does not answer, that is not an error: the sandbox's host may still reach it.

    Raises:
        ModelError: The hub refuses; the message says why and what to do.
    """
    try:
        await _fetched({"repo_id": name, "revision": revision, "token": token, "look": True})
    except _Failed as failed:
        if failed.kind in _REFUSALS:
            raise _model_error(name, revision, failed.kind, failed.words) from None
        logger.info("model %s could not be looked up from here: %s", name, failed.words)


async def download(
    name: str,
    revision: str,
    *,
    token: str | None,
    on_bytes: OnBytes,
    packages: Path | None = None,
) -> tuple[Path, str]:
    """Download a model from the hub, or the parts of it that are missing.

    Args:
        name: Its id.
        revision: A branch, tag or commit.
        token: The hub token to use instead of the one that the hub's library finds.
        on_bytes: Called while bytes arrive.
        packages: An environment with the hub's library, if the interpreter does not have it.

    Returns:
        The folder, and the commit.

    Raises:
        ModelError: It could not be downloaded; the message says why and what to do.
    """
    logger.info("model %s: looking for revision %s", name, revision)
    request = {"repo_id": name, "revision": revision, "token": token}
    try:
        final = await _fetched(request, on_bytes=on_bytes, packages=packages)
    except _Failed as failed:
        raise _model_error(name, revision, failed.kind, failed.words) from None
    return Path(final["path"]), final["commit"]


class _Failed(Exception):
    """The program that asks the hub failed."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind
        self.words = words


async def _fetched(
    request: Mapping[str, Any],
    *,
    on_bytes: OnBytes | None = None,
    packages: Path | None = None,
) -> dict[str, Any]:
    """Run `_fetch` with a request, and return its result.

    Raises:
        _Failed: It failed.
    """
    final: dict[str, Any] = {}

    def on_line(line: str) -> None:
        message = cast("dict[str, Any]", json.loads(line))
        if "done" not in message:
            final.update(message)
        elif on_bytes is not None:
            on_bytes(message["done"], message["total"])

    environment = {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        **os.environ,
    }
    if packages is not None:
        environment["PYTHONPATH"] = site_packages(packages)
    ended = await run_program(
        [sys.executable, "-P", _fetch.__file__],
        env=environment,
        stdin=json.dumps(request).encode() + b"\n",
        on_stdout=on_line,
    )
    if "error" in final:
        raise _Failed(final["error"], final["message"])
    if not final:
        raise _Failed("other", ended.stderr.strip() or f"exit {ended.exit_code}")
    return final


def _model_error(name: str, revision: str, kind: str, words: str) -> ModelError:
    if kind == "unknown":
        advice = "no such model on the hub; check the name, or HF_TOKEN if it is private"
    elif kind == "revision":
        advice = f"the hub has this model, but no revision {revision!r}"
    elif kind == "gated":
        advice = (
            "the model is gated; accept its terms on the hub with the account of your HF_TOKEN, "
            "and set HF_TOKEN"
        )
    elif kind == "token":
        advice = (
            "the hub refused the credentials; set HF_TOKEN to a valid token that may read this "
            "model (or check the name)"
        )
    elif kind == "offline":
        advice = (
            "HF_HUB_OFFLINE is set and the model is not complete in the cache; unset it, or "
            "download the model first"
        )
    elif kind == "connection":
        advice = (
            "could not reach the Hugging Face Hub, or the connection broke off; check the network "
            "and HF_ENDPOINT"
        )
    elif kind == "disk":
        advice = "the disk is full; free some space, or set HF_HOME to a larger one"
    elif kind == "corrupt":
        advice = "the download was corrupt and has been deleted; start again"
    elif kind == "room":
        return ModelError(f"model {name!r}: {words}; make room, or set HF_HOME to a larger disk")
    else:
        advice = "the download failed"
    return ModelError(f"model {name!r}: {advice}\n{words}")
