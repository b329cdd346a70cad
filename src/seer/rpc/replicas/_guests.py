"""Callers as the front knows them: which copy is a caller's home, and where its handles are."""

from __future__ import annotations

import re

from seer.rpc.server._calls import Caller
from seer.rpc.values._handles import Handle, HandleTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from seer.rpc.interface._budget import Meter
    from seer.rpc.server._calls import Call

    from ._copy_link import CopyLink

_GIVEN = re.compile(rb'"\$seer": ?"handle", ?"id": ?"([0-9a-f]{32})"')
_ID = re.compile(rb'"([0-9a-f]{32})"')


class HandlePlaces(HandleTable):
    """Which copy has the value of each of a caller's handles; the values are not here."""

    __slots__ = ("_name",)

    def __init__(self, name: str, room: Callable[[], int]) -> None:
        super().__init__(room)
        self._name = name

    def learn(self, text: bytes | memoryview, copy: CopyLink) -> None:
        """Note the handles that a copy gives to the caller with this answer."""
        for found in _GIVEN.finditer(text):
            self._values[found[1].decode()] = Handle(copy)

    def where(self, identifier: str) -> CopyLink | None:
        """The copy that has a handle's value; None if the caller has no such handle."""
        known = self._values.get(identifier)
        return None if known is None else known.value

    def named_in(self, body: bytes | bytearray | memoryview) -> CopyLink | None:
        """The copy that has a handle which these arguments name; None if they name none."""
        if not self._values:
            return None
        for found in _ID.finditer(body):
            known = self._values.get(found[1].decode())
            if known is not None:
                return known.value
        return None

    def at(self, copy: CopyLink) -> int:
        """How many are at this copy."""
        return sum(handle.value is copy for handle in self._values.values())

    def forget(self, copy: CopyLink) -> None:
        """Drop those at a copy that is no more."""
        self._values = {k: h for k, h in self._values.items() if h.value is not copy}

    def free(self, identifier: str) -> bool:
        """Have a value let go where it is; False if the caller has no such handle."""
        known = self._values.pop(identifier, None)
        if known is None:
            return False
        known.value.tell({"op": "free", "caller": self._name, "handle": identifier})
        return True


class Guest(Caller):
    """A caller of the front.

    Attributes:
        home: The copy that has its state; None before its first call that needs one.
        lost: How the copy ended that was its home, until it was told.
        turn: When it had its last turn, as a count of all turns.
        running: How many of its calls each copy has.
        gone: Whether it was removed.
        places: Its handles.
    """

    __slots__ = ("gone", "home", "lost", "places", "running", "turn")

    def __init__(self, name: str, index: int, meter: Meter) -> None:
        super().__init__(name, index, meter)
        self.handles = self.places = HandlePlaces(name, self.room)
        self.home: CopyLink | None = None
        self.lost = ""
        self.turn = 0
        self.running: dict[CopyLink, int] = {}
        self.gone = False


def guest_of(call: Call) -> Guest:
    """A call's caller; at the front, all are guests."""
    guest = call.owner
    assert isinstance(guest, Guest)
    return guest
