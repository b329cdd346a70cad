"""Memory that the supervisor and the interface process share over a fork.

It holds what must outlive a crash or be readable while the interface cannot answer: the meters of
all budgets, and a *mark* for each call that runs or waits. The mark of a running call has the time
at which the supervisor may kill the process because of it. A mark also has room for the arguments
of its call, if they are small, for the record of a call that a crash ends.

A call keeps its mark until the recorder has it. The recorder numbers the calls that it gets: it
writes the number into the mark, and then raises the count of calls that it has. So after a crash,
each call is either known from its mark or covered by that count, never both.
"""

from __future__ import annotations

import mmap
import time
from _thread import allocate_lock
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from seer.rpc.interface._budget import WIDTH

if TYPE_CHECKING:
    from ._calls import Call

MARKS = 1024
"""Marks of calls that run. A flood of waiting calls cannot use them up, so no function can run
without one and escape its timeout."""
MAIN_MARK = 0
"""The mark of the call on the main thread; `Marks` gives out the others."""
WAITING = 4096
"""Marks of calls that wait; they follow the others."""
_ALL_MARKS = MARKS + WAITING
_MARK_BYTES = 256
MARK_CELLS = _MARK_BYTES // 8
_KILL_AT, _SINCE, _PLACE, _PAID, _SHARED_BY, _MADE, NOTED, _SIZE = range(8)
"""The cells of a mark; the ids of the call and of its tool call follow them."""
_ID_AT = 64
_ID_BYTES = 64
_STREAMED = (_ID_AT + 2 * _ID_BYTES) // 8
"""The cell after the ids."""
_pack_call = Struct(f"=dddddddd{_ID_BYTES}s{_ID_BYTES}sd").pack_into
_BODY_BYTES = 2048
"""Bytes of arguments that are kept for one mark. Larger ones are not kept."""
LOOK_AGAIN = 0.005
"""Seconds between two checks for a free mark."""
_FUNCTIONS = 4096
METERS = 8192
FIRST_FUNCTION = 1
"""Meter 0 is the interface's. The meters of the functions follow, then those of the callers."""
FETCH_METER = FIRST_FUNCTION + 2000
FIRST_CALLER = 2048
_METER_BASE = _ALL_MARKS * MARK_CELLS
_CALLERS = METERS - FIRST_CALLER
_BODIES_AT = _ALL_MARKS * _MARK_BYTES + (METERS * WIDTH + _CALLERS + 3) * 8


def first_place(caller: int) -> int:
    """The first place of a caller. Its place for a function is that plus the function's number."""
    return caller * _FUNCTIONS


@dataclass(frozen=True, slots=True)
class UnfinishedCall:
    """A call that ran or waited when its process ended.

    Attributes:
        caller: Its caller's number.
        function: Its function's number.
        call: Its id.
        tool_call: The id of the tool call that it belongs to, as its caller says.
        made: When its request arrived (monotonic).
        since: When its function began (monotonic); 0 if it waits.
        paid: Seconds that were charged for it already; 0 if its caller was not answered while it
            ran.
        shared_by: How many calls of a batch share its time.
        noted: Whether the recorder had it.
        streamed: How many items it had sent, or was about to send.
        body: The JSON text of its arguments; None if it was not kept.
    """

    caller: int
    function: int
    call: str
    tool_call: str
    made: float
    since: float
    paid: float
    shared_by: int
    noted: bool
    streamed: int
    body: bytes | None


class Shared:
    """The shared memory. Make it before the fork."""

    __slots__ = ("bytes", "cells", "kept", "recorded")

    def __init__(self) -> None:
        memory = mmap.mmap(-1, _BODIES_AT + _ALL_MARKS * _BODY_BYTES)
        self.bytes = memoryview(memory)
        self.cells = self.bytes[:_BODIES_AT].cast("d")
        self.recorded = self.cells[-3:]
        """How many calls the recorder has received, how many of them it has written, and how many
        calls wait without a mark."""
        self.kept = self.cells[-3 - _CALLERS : -3]
        """By the number of a caller: how many of its calls wait for its next run, or were dropped
        before that."""

    def meter_base(self, index: int) -> int:
        """The first cell of meter number `index`.

        Raises:
            ValueError: There is no such meter.
        """
        if not 0 <= index < METERS:
            raise ValueError(f"there is no room for more than {METERS} callers and functions")
        return _METER_BASE + index * WIDTH

    def clear_meter(self, index: int) -> None:
        """Set meter number `index` to 0."""
        base = self.meter_base(index)
        for cell in range(base, base + WIDTH):
            self.cells[cell] = 0.0

    def begin(
        self,
        mark: int,
        call: Call,
        since: float,
        kill_at: float,
        shared_by: int,
        body: bytes | bytearray | memoryview | None,
    ) -> None:
        """Mark a call as running or waiting.

        Args:
            mark: The mark to use.
            call: The call.
            since: When its function began (monotonic); 0 if it waits.
            kill_at: When the supervisor may kill the process if the call has not ended; 0 for
                never.
            shared_by: How many calls of a batch share its time.
            body: The JSON text of its arguments, to be kept if it is small; None for no text.
        """
        size = -1
        if body is not None:
            size = len(body)
            if size <= _BODY_BYTES:
                at = _BODIES_AT + mark * _BODY_BYTES
                self.bytes[at : at + size] = body
            else:
                size = -1
        _pack_call(
            self.bytes,
            mark * _MARK_BYTES,
            kill_at,
            since,
            call.place,
            0.0,
            shared_by,
            call.queued_at,
            0.0,
            size,
            call.id.encode(),
            call.tool_call.encode(),
            0.0,
        )

    def go_on(self, mark: int, *, since: float, kill_at: float, shared_by: int) -> None:
        """Change the times of a running call; the arguments are as for `begin`."""
        cell = mark * MARK_CELLS
        self.cells[cell + _KILL_AT] = kill_at
        self.cells[cell + _SINCE] = since
        self.cells[cell + _SHARED_BY] = shared_by

    def streams(self, mark: int) -> None:
        """Note that a running call sends one more item."""
        self.cells[mark * MARK_CELLS + _STREAMED] += 1.0

    def answered(self, mark: int, paid: float) -> None:
        """Note that a call's caller was charged for `paid` seconds, and its function runs on."""
        self.cells[mark * MARK_CELLS + _PAID] = max(paid, 1e-9)

    def end(self, mark: int) -> None:
        """Note that the call has ended, or no longer waits."""
        cell = mark * MARK_CELLS
        self.cells[cell + _KILL_AT] = 0.0
        self.cells[cell + _MADE] = 0.0

    def overdue(self, now: float) -> bool:
        """Whether a call has run past the time at which the process may be killed."""
        times = self.cells[: MARKS * MARK_CELLS : MARK_CELLS].tolist()
        return any(0.0 < when < now for when in times)

    def unfinished(self) -> list[UnfinishedCall]:
        """The calls that ran and then those that waited, for use after a crash."""
        found: list[UnfinishedCall] = []
        for mark in range(_ALL_MARKS):
            cell = mark * MARK_CELLS
            if self.cells[cell + _MADE]:
                cells = self.cells[cell : cell + _SIZE + 1].tolist()
                _, since, place, paid, shared_by, made, noted, size = cells
                start = mark * _MARK_BYTES + _ID_AT
                ids = self._text(start), self._text(start + _ID_BYTES)
                caller, function = divmod(int(place), _FUNCTIONS)
                body = _BODIES_AT + mark * _BODY_BYTES
                found.append(
                    UnfinishedCall(
                        caller,
                        function,
                        *ids,
                        made,
                        since,
                        paid,
                        int(shared_by) or 1,
                        0 < noted <= self.recorded[0],
                        int(self.cells[cell + _STREAMED]),
                        None if size < 0 else bytes(self.bytes[body : body + int(size)]),
                    )
                )
        return found

    def _text(self, start: int) -> str:
        return bytes(self.bytes[start : start + _ID_BYTES]).rstrip(b"\0").decode()

    def last(self) -> list[int]:
        """The number of the last function at each mark, whether it still runs or not."""
        places = self.cells[_PLACE : MARKS * MARK_CELLS : MARK_CELLS].tolist()
        return [int(place) % _FUNCTIONS for place in places if place]

    def take_unrecorded(self) -> int:
        """Reset the counts, and return how many calls are neither written nor known from a mark."""
        noted, written, unmarked = self.recorded
        for index in range(len(self.recorded)):
            self.recorded[index] = 0.0
        return int(noted - written + unmarked)

    def reset_marks(self) -> None:
        """Clear all marks, before a new interface process starts."""
        self.bytes[: _ALL_MARKS * _MARK_BYTES] = bytes(_ALL_MARKS * _MARK_BYTES)


class Marks:
    """Gives out marks, so that no two calls share one.

    Args:
        first: The first one.
        end: The number after the last one.
    """

    def __init__(self, first: int = MAIN_MARK + 1, end: int = MARKS) -> None:
        # The mark that was given back last is taken first, so that few marks use memory.
        self._free = [*range(end - 1, first - 1, -1)]

    def take(self) -> int:
        """A mark; waits while more than a thousand calls run."""
        while (mark := self.try_take()) < 0:
            time.sleep(LOOK_AGAIN)
        return mark

    def try_take(self) -> int:
        """A mark, or -1 if none is free."""
        try:
            return self._free.pop()
        except IndexError:
            return -1

    def give(self, mark: int) -> None:
        """Give a mark back; does nothing for -1 and for the main thread's mark."""
        if mark > MAIN_MARK:
            self._free.append(mark)


class WaitingMarks:
    """Marks the calls that wait, so that they are in the record if the process ends.

    A call that runs as soon as it is read never gets here.

    Args:
        shared: Has the marks.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._marks = Marks(MARKS, _ALL_MARKS)
        self._lock = allocate_lock()

    def add(self, call: Call) -> int:
        """Mark a call as waiting, and return what `remove` needs."""
        mark = self._marks.try_take()
        if mark >= 0:
            self._shared.begin(mark, call, 0.0, 0.0, 1, call.text)
        else:
            self._count(1)
        return mark

    def remove(self, mark: int) -> None:
        """Note that a call no longer waits."""
        if mark >= 0:
            self._shared.end(mark)
            self._marks.give(mark)
        else:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            self._shared.recorded[2] += more
