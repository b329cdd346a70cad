"""The `__init__` of the client's bundle, for `from _seer_gate import connect` (see `_bundles`)."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    import importlib

    return getattr(importlib.import_module(__name__ + ".rpc.client"), name)
