"""Memory that the supervisor and the interface process share over a fork.

It holds what must outlive a crash or be seen while the interface cannot answer: the meters of all
budgets, and, per lane (a thread that runs functions), which call runs and until when it may.
"""

from __future__ import annotations

import mmap
from struct import Struct

from seer.rpc._budget import WIDTH

LANES = 128
_LANE_BYTES = 256
_LANE_CELLS = _LANE_BYTES // 8
_TEXT = 64
_pack_call = Struct(f"=dd40x{_TEXT}s").pack_into
"""From a lane's second cell on: since when it runs, its place and, at byte 64, the call's id."""
_FUNCTIONS = 4096
METERS = 8192
FIRST_FUNCTION = 1
"""Meter 0 is the interface's; those of the functions follow, then those of the callers."""
FIRST_CALLER = 2048
_METER_BASE = LANES * _LANE_CELLS


def turned_to(lane: int) -> int:
    """The cell that holds the place that `lane` turned to last."""
    return lane * _LANE_CELLS + 2


def first_place(caller: int) -> int:
    """The place of a caller, by its number; those of its functions, by theirs, follow."""
    return caller * _FUNCTIONS


class Shared:
    """The shared memory. Make it before the fork."""

    __slots__ = ("bytes", "cells", "recorded")

    def __init__(self) -> None:
        memory = mmap.mmap(-1, LANES * _LANE_BYTES + METERS * WIDTH * 8 + 2 * 8)
        self.bytes = memoryview(memory)
        self.cells = self.bytes.cast("d")
        self.recorded = self.cells[-2:]
        """How many calls the recorder was told of, and how many of them are in its files."""

    def meter_base(self, index: int) -> int:
        """Where the cells of meter number `index` begin.

        Raises:
            ValueError: There are only `METERS`.
        """
        if not 0 <= index < METERS:
            raise ValueError(f"there is no room for more than {METERS} callers and functions")
        return _METER_BASE + index * WIDTH

    def clear_meter(self, index: int) -> None:
        """Forget what was counted by meter number `index`."""
        base = self.meter_base(index)
        for cell in range(base, base + WIDTH):
            self.cells[cell] = 0.0

    def enter(self, lane: int, place: int) -> None:
        """Note what `lane` turned to last: the place of a function and its caller."""
        self.cells[turned_to(lane)] = place

    def begin(self, lane: int, place: int, call: str, now: float) -> None:
        """The same, and that it is running, with the call's id."""
        _pack_call(self.bytes, lane * _LANE_BYTES + 8, now, place, call.encode())

    def end(self, lane: int) -> None:
        """Note that `lane` runs nothing; needed where `begin` or `kill_after` was called."""
        cell = lane * _LANE_CELLS
        self.cells[cell] = 0.0
        self.cells[cell + 1] = 0.0

    def kill_after(self, lane: int, when: float) -> None:
        """Ask the supervisor to kill the process if `lane` is not done by then (monotonic)."""
        self.cells[lane * _LANE_CELLS] = when

    def overdue(self, now: float) -> bool:
        """Whether a lane is past the time it was given; asked by the supervisor."""
        return any(0.0 < self.cells[i * _LANE_CELLS] < now for i in range(LANES))

    def running(self) -> list[tuple[int, int, str, float]]:
        """What runs: caller and function by number, call's id, since when. For after a crash."""
        found: list[tuple[int, int, str, float]] = []
        for lane in range(LANES):
            cell = lane * _LANE_CELLS
            since = self.cells[cell + 1]
            if since:
                start = lane * _LANE_BYTES + 64
                call = bytes(self.bytes[start : start + _TEXT]).rstrip(b"\0").decode()
                caller, function = divmod(int(self.cells[cell + 2]), _FUNCTIONS)
                found.append((caller, function, call, since))
        return found

    def last(self) -> list[int]:
        """The numbers of the functions that lanes turned to last, whether they run or not."""
        found: list[int] = []
        for lane in range(LANES):
            code = int(self.cells[lane * _LANE_CELLS + 2])
            if code:
                found.append(code % _FUNCTIONS)
        return found

    def take_unrecorded(self) -> int:
        """How many calls a process that has ended had answered and not written down."""
        noted, written = self.recorded
        self.recorded[0] = self.recorded[1] = 0.0
        return int(noted - written)

    def reset_lanes(self) -> None:
        """Forget what ran, before a new interface process starts."""
        self.bytes[: LANES * _LANE_BYTES] = bytes(LANES * _LANE_BYTES)
