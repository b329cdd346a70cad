"""Hosts that were used, so that a later process can find what still runs on them."""

import contextlib
import fcntl
import json
from collections.abc import Mapping
from typing import Any, cast

from seer._files import replace_file
from seer._places import state_dir


def remember(provider: str, place: str, options: Mapping[str, object]) -> None:
    """Note that machines of this provider may run at a place, and how to get there. No secrets."""
    folder = state_dir() / "remote"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{provider}.json"
    with (folder / f"{provider}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = recall(provider)
        if known.get(place) == options:
            return
        known[place] = dict(options)
        replace_file(path, json.dumps(known, indent=1))


def recall(provider: str) -> dict[str, dict[str, Any]]:
    """Place -> how to get there."""
    with contextlib.suppress(OSError, ValueError):
        text = (state_dir() / "remote" / f"{provider}.json").read_text()
        return cast("dict[str, dict[str, Any]]", json.loads(text))
    return {}
