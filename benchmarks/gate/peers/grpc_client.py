# pyright: basic
# The libraries used here have no type hints.
"""gRPC's blocking client."""

from __future__ import annotations

from typing import Any

import grpc

from benchmarks.gate.peers import _grpc_messages as m


class GrpcClient:
    """See `Client`."""

    def __init__(self, address: str) -> None:
        # If the server does not listen yet, a channel waits a second before it tries again.
        retry = [("grpc.initial_reconnect_backoff_ms", 10), ("grpc.min_reconnect_backoff_ms", 10)]
        self._channel = grpc.insecure_channel(address, options=[*m.OPTIONS, *retry])
        grpc.channel_ready_future(self._channel).result(timeout=60)
        self._call = {
            name: self._channel.unary_unary(
                f"/{m.PACKAGE}.Work/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=reply.FromString,
            )
            for name, (request, reply) in m.METHODS.items()
        }

    def small(self, x: int) -> int:
        """See `Client`."""
        return self._call["small"](m.Number(value=x)).value

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return list(self._call["floats"](m.Number(value=n)).values)

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return self._call["take"](m.Floats(values=values)).value

    def fail(self, message: str) -> None:
        """See `Client`."""
        self._call["fail"](m.Text(value=message))

    def array(self, nbytes: int, stamp: int) -> Any:
        """See `Client`."""
        return self._call["array"](m.Shape(nbytes=nbytes, stamp=stamp)).value

    def close(self) -> None:
        """See `Client`."""
        self._channel.close()


def connect(address: str) -> GrpcClient:
    """Connect."""
    return GrpcClient(address)
