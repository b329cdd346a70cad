"""A file of the hosts that were used, so that a later process can find the machines on them."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from seer._files import locked, replace_file
from seer._paths import state_dir


def remember(provider: str, place: str, options: Mapping[str, object]) -> None:
    """Record that a provider may have machines at a place, and how to reach it, without secrets."""
    folder = state_dir() / "remote"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{provider}.json"
    with locked(folder / f"{provider}.lock"):
        known = recall(provider)
        if known.get(place) == options:
            return
        known[place] = dict(options)
        replace_file(path, json.dumps(known, indent=1))


def recall(provider: str) -> dict[str, dict[str, Any]]:
    """The known places, each with the options for reaching it."""
    from pydantic import TypeAdapter

    with contextlib.suppress(OSError, ValueError):
        text = (state_dir() / "remote" / f"{provider}.json").read_bytes()
        return TypeAdapter(dict[str, dict[str, Any]]).validate_json(text)
    return {}
