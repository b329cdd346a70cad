"""The door of the client's bundle: `from _seer_gate import connect` (see `seer.rpc._ship`)."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    import importlib

    return getattr(importlib.import_module(__name__ + ".rpc.client"), name)
