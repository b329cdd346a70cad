"""Processes that functions fork: they must not have the gate's sockets.

A worker of a process pool or of a data loader lives on when the interface's process is killed. With
a copy of a caller's connection it would keep that open, and the caller would wait for ever.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._loop import Loop


class Withheld:
    """Descriptors of this process that none which is forked from it keeps.

    Args:
        descriptors: What to withhold until `loop` is set; then, what the loop watches.
    """

    def __init__(self, *descriptors: int) -> None:
        self._descriptors = descriptors
        self.loop: Loop | None = None
        os.register_at_fork(after_in_child=self._let_go)

    def _let_go(self) -> None:
        """In the forked process: replace each descriptor by one of /dev/null. Closing them instead
        would free their numbers for reuse while objects of the gate still have them.
        """
        found = self._descriptors if self.loop is None else self.loop.descriptors()
        # What that process forks in turn has nothing more to lose.
        self._descriptors, self.loop = (), None
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in found:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
