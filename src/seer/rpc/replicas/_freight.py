"""What the front knows of a call beyond what any gate does: what to send on, and where it went."""

from __future__ import annotations

import os

from seer.errors import ProtocolError
from seer.rpc.wire._protocol import FRAMES_TYPE, format_pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.rpc.server._calls import Call
    from seer.rpc.wire._http import Request

    from ._copy_link import CopyLink
    from ._link import Link


class Freight:
    """The way of one call.

    Attributes:
        body: The request's whole body; empty where the call's own text is all there is.
        headers: The header lines that describe that body.
        memfds: Descriptors that go with it.
        bound: Whether only one copy can run it.
        tries: How often it was handed to a copy.
        copy: The copy that has it.
        link: The connection to that copy.
        number: Its id on the link.
    """

    __slots__ = (
        "body",
        "bound",
        "copy",
        "headers",
        "link",
        "memfds",
        "number",
        "tries",
    )

    def __init__(self) -> None:
        self.body: bytes | bytearray = b""
        self.headers = b""
        self.memfds: list[int] = []
        self.bound = False
        self.tries = 0
        self.copy: CopyLink | None = None
        self.link: Link | None = None
        self.number = 0

    @classmethod
    def of_frames(
        cls, body: bytes | bytearray, request: Request, descriptors: list[int]
    ) -> Freight:
        """The freight of a call whose arguments have buffers; the descriptors stay the giver's.

        Raises:
            ProtocolError: There is no room for them.
        """
        self = cls()
        self.body = body
        self.headers = b"content-type: %s\r\nseer-json: %d\r\nseer-buffers: %s\r\n" % (
            FRAMES_TYPE,
            request.json_size,
            format_pieces(request.pieces or []),
        )
        if descriptors:
            self.headers += b"seer-memfds: %d\r\n" % len(descriptors)
            try:
                for fd in descriptors:
                    self.memfds.append(os.dup(fd))
            except OSError as error:
                self.close()
                raise ProtocolError(f"the gate has no room for a memfd: {error.strerror}") from None
        return self

    def close(self) -> None:
        """Close the descriptors: the call has ended."""
        while self.memfds:
            os.close(self.memfds.pop())


def freight_of(call: Call) -> Freight:
    """What the front knows of a call that was submitted."""
    freight = call.freight
    assert freight is not None
    return freight
