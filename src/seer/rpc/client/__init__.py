"""The client of the gate: what a generated library calls through.

It runs in agents' jails, where nothing else of Seer is, under any name: only relative imports and
the standard library. numpy is used where arrays come and it is there.
"""

from __future__ import annotations

from ._deadline import deadline
from ._gate import Gate, connect
from ._handles import Handle

__all__ = ["Gate", "Handle", "connect", "deadline"]
