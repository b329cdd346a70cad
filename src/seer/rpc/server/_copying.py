"""Copying the memory of arrays: large ones in parts, on several cores.

One core fills memory at about half of what two can. numpy does the copying where it is there,
because its copies let other threads run; without it one thread copies, and holds up the others.
"""

from __future__ import annotations

import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

APART = 16 << 20
"""Bytes from which on a copy is made in parts; below, starting a thread takes what it saves."""
MOST = 4
"""Parts at most: more threads do not move more bytes."""
_PAGE = 4096


def copy(source: memoryview, target: memoryview) -> None:
    """Copy all of `source` to the beginning of `target`; both are of bytes."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        target[:] = source
        return
    here = numpy.frombuffer(source, "u1")
    there = numpy.frombuffer(target, "u1")
    parts = min(MOST, len(os.sched_getaffinity(0))) if len(source) >= APART else 1
    step = (len(source) // parts + _PAGE) // _PAGE * _PAGE
    threads = [
        thread
        for start in range(step, len(source), step)
        if (thread := _begin(numpy, there[start : start + step], here[start : start + step]))
    ]
    numpy.copyto(there[:step], here[:step])
    for thread in threads:
        thread.join()


def _begin(numpy: Any, target: Any, source: Any) -> threading.Thread | None:
    """Copy on a thread of its own; None, and done already, where there can be no more threads."""
    thread = threading.Thread(
        target=numpy.copyto, args=(target, source), name="seer-copy", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:
        numpy.copyto(target, source)
        return None
    return thread
