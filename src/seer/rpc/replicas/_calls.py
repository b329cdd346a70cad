"""Callers and calls as the front knows them.

A caller has a home copy, and handles in some copies. A call is passed on to one copy at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seer.errors import ProtocolError
from seer.rpc.server._callers import Caller
from seer.rpc.server._calls import Call
from seer.rpc.values._handles import Handle, HandleTable
from seer.rpc.wire._descriptors import close_each, duplicates
from seer.rpc.wire._protocol import FRAMES_TYPE, format_pieces

if TYPE_CHECKING:
    from seer.rpc.interface._budget import Meter
    from seer.rpc.wire._http import Request

    from ._copy_client import CopyClient, CopyConnection

# The front does not parse bodies. Both patterns are exact: quotes inside a JSON string are escaped.
_GIVEN = re.compile(rb'"\$seer": ?"handle", ?"id": ?"([0-9a-f]{32})"')
"""A handle in an answer, as `HandleTable.add` describes it."""
_ID = re.compile(rb'"([0-9a-f]{32})"')
"""A string in arguments that can be a handle's id. It is one if the caller has such a handle."""


class HandlePlaces(HandleTable):
    """Knows which copy has the value of each handle of a caller; the values are not here."""

    __slots__ = ("_name",)

    def __init__(self, name: str, room: Callable[[], int]) -> None:
        super().__init__(room)
        self._name = name

    def learn(self, text: bytes | memoryview, copy: CopyClient) -> None:
        """Note the handles that a copy's answer gives to the caller."""
        for found in _GIVEN.finditer(text):
            self._values[found[1].decode()] = Handle(copy)

    def where(self, identifier: str) -> CopyClient | None:
        """The copy that has a handle's value; None if the caller has no such handle."""
        known = self._values.get(identifier)
        return None if known is None else known.value

    def named_in(self, body: bytes | bytearray | memoryview) -> CopyClient | None:
        """The copy that has the first handle in these arguments; None if they have no handle."""
        if not self._values:
            return None
        for found in _ID.finditer(body):
            known = self._values.get(found[1].decode())
            if known is not None:
                return known.value
        return None

    def at(self, copy: CopyClient) -> int:
        """How many handles are at this copy."""
        return sum(handle.value is copy for handle in self._values.values())

    def forget(self, copy: CopyClient) -> None:
        """Forget the handles at a copy that has ended."""
        self._values = {k: h for k, h in self._values.items() if h.value is not copy}

    def free(self, identifier: str) -> bool:
        """Tell the copy to release a value; False if the caller has no such handle."""
        known = self._values.pop(identifier, None)
        if known is None:
            return False
        known.value.tell({"op": "free", "caller": self._name, "handle": identifier})
        return True


class FrontCaller(Caller):
    """A caller of the front.

    Attributes:
        home: The copy that has its state; None before its first call that needs a home.
        lost: How its home ended, until an error has told the caller.
        turn: The number of its last turn, among the turns of all callers.
        running: How many of its calls each copy has.
        gone: Whether it was removed.
        places: Which copy has each of its handles.
    """

    __slots__ = ("gone", "home", "lost", "places", "running", "turn")

    def __init__(self, name: str, index: int, meter: Meter) -> None:
        super().__init__(name, index, meter)
        self.handles = self.places = HandlePlaces(name, self.room)
        self.home: CopyClient | None = None
        self.lost = ""
        self.turn = 0
        self.running: dict[CopyClient, int] = {}
        self.gone = False


class FrontCall(Call):
    """A call that a copy runs.

    Attributes:
        message: The whole body of the request; empty if `body`, the JSON text, is all of it.
        headers: The header lines that describe `message`.
        memfds: The descriptors to send with it.
        bound: Whether only one copy can run it.
        tries: How often it was handed to a copy.
        at: The copy that has it.
        copy_connection: The connection to that copy.
        number: Its id on that connection.
    """

    message: bytes | bytearray = b""
    headers = b""
    bound = False
    tries = 0
    at: CopyClient | None = None
    copy_connection: CopyConnection | None = None
    number = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.memfds: list[int] = []

    @property
    def caller(self) -> FrontCaller:
        """Its caller."""
        assert isinstance(self.owner, FrontCaller)
        return self.owner

    def keep_message(
        self, body: bytes | bytearray, request: Request, descriptors: list[int]
    ) -> None:
        """Keep a body with buffers for the copy; the descriptors are duplicated.

        Raises:
            ProtocolError: This process has too many open descriptors.
        """
        self.message = body
        self.headers = b"content-type: %s\r\nseer-json: %d\r\nseer-buffers: %s\r\n" % (
            FRAMES_TYPE,
            request.json_size,
            format_pieces(request.pieces or []),
        )
        if descriptors:
            self.headers += b"seer-memfds: %d\r\n" % len(descriptors)
            try:
                self.memfds = duplicates(descriptors)
            except OSError as error:
                raise ProtocolError(f"the gate has no room for a memfd: {error.strerror}") from None

    def close_memfds(self) -> None:
        """Close the descriptors when the call has ended."""
        close_each(self.memfds)


def at_front(call: Call) -> FrontCall:
    """The call as a `FrontCall`, which is what the front's gate makes."""
    assert isinstance(call, FrontCall)
    return call
