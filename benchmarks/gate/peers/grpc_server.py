# pyright: basic
# The libraries used here have no type hints.
"""gRPC with a thread pool."""

from __future__ import annotations

import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from benchmarks.gate import _work
from benchmarks.gate.peers import _grpc_messages as m


def _small(request: Any, context: grpc.ServicerContext) -> Any:
    return m.Number(value=_work.small(request.value))


def _floats(request: Any, context: grpc.ServicerContext) -> Any:
    return m.Floats(values=_work.floats(request.value))


def _take(request: Any, context: grpc.ServicerContext) -> Any:
    return m.Real(value=_work.take(list(request.values)))


def _array(request: Any, context: grpc.ServicerContext) -> Any:
    return m.Data(value=_work.array(request.nbytes, request.stamp).tobytes())


def _fail(request: Any, context: grpc.ServicerContext) -> Any:
    try:
        _work.fail(request.value)
    except ValueError as error:
        context.set_trailing_metadata((("traceback-bin", traceback.format_exc().encode()),))
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


_BEHAVIOURS = {"small": _small, "floats": _floats, "take": _take, "array": _array, "fail": _fail}


def main(address: str) -> None:
    """Serve forever."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _BEHAVIOURS[name],
            request_deserializer=request.FromString,
            response_serializer=reply.SerializeToString,
        )
        for name, (request, reply) in m.METHODS.items()
    }
    server = grpc.server(ThreadPoolExecutor(8), options=m.OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"{m.PACKAGE}.Work", handlers),)
    )
    server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
