"""ZeroMQ: one REP socket, msgpack, arrays as a frame of their own."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import zmq

from benchmarks.gate import _work
from benchmarks.gate._msgpack import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "small": _work.small,
    "floats": _work.floats,
    "take": _work.take,
    "array": _work.array,
    "fail": _work.fail,
}


def main(address: str) -> None:
    """Serve forever."""
    sock = zmq.Context().socket(zmq.REP)
    sock.bind(address)
    while True:
        name, arguments = unpack(sock.recv())
        try:
            result = _FUNCTIONS[name](*arguments)
        except Exception as error:
            reply = {"e": [type(error).__name__, str(error), traceback.format_exc()]}
            sock.send(pack(reply))
            continue
        if name == "array":
            # The next call changes the array, so the frame must be sent before that call. One
            # client's requests and replies alternate, so this holds without a copy.
            sock.send_multipart([pack({"r": None}), result], copy=False)
        else:
            sock.send(pack({"r": result}))


if __name__ == "__main__":
    main(sys.argv[1])
