"""Download a model from the hub, and explain failures.

The hub's library does the work, in a separate program (`_fetch`).
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from seer.environment._process import run_program
from seer.environment.models import _fetch
from seer.environment.packages._assemble import site_packages
from seer.errors import ModelError

logger = logging.getLogger(__name__)

OnBytes = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


async def download(
    name: str,
    revision: str,
    *,
    token: str | None,
    on_bytes: OnBytes,
    packages: Path | None = None,
) -> tuple[Path, str]:
    """Download a model from the hub, or what is missing of it.

    Args:
        name: Its id.
        revision: A branch, tag or commit.
        token: The hub token to use instead of the one that the hub's library finds.
        on_bytes: Called while bytes arrive.
        packages: An environment that has the hub's library, where the interpreter does not.

    Returns:
        The folder, and the commit.

    Raises:
        ModelError: It could not be had; the message says why and what to do.
    """
    final: dict[str, Any] = {}

    def on_line(line: str) -> None:
        message = cast("dict[str, Any]", json.loads(line))
        if "done" in message:
            on_bytes(message["done"], message["total"])
        else:
            final.update(message)

    request = {"repo_id": name, "revision": revision, "token": token}
    environment = {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        **os.environ,
    }
    if packages is not None:
        environment["PYTHONPATH"] = site_packages(packages)
    logger.info("model %s: looking for revision %s", name, revision)
    ended = await run_program(
        [sys.executable, "-P", _fetch.__file__],
        env=environment,
        stdin=json.dumps(request).encode() + b"\n",
        on_stdout=on_line,
    )
    if "path" in final:
        return Path(final["path"]), final["commit"]
    if "error" not in final:
        final = {"error": "other", "message": ended.stderr.strip() or f"exit {ended.exit_code}"}
    raise _model_error(name, revision, final["error"], final["message"])


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
        advice = "the hub could not be reached to the end; check the network and HF_ENDPOINT"
    elif kind == "disk":
        advice = "the disk is full; free some space, or set HF_HOME to a larger one"
    elif kind == "corrupt":
        advice = "the download was damaged and thrown away; start again"
    else:
        advice = "the download failed"
    return ModelError(f"model {name!r}: {advice}\n{words}")
