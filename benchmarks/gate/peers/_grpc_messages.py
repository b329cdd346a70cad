# pyright: basic
# The libraries used here have no type hints.
"""Protobuf messages for gRPC, declared in Python so that no compiler is needed.

message Number { int64 value = 1; }
message Floats { repeated double values = 1; }    (packed)
message Text   { string value = 1; }
message Shape  { int64 nbytes = 1; int64 stamp = 2; }
message Data   { bytes value = 1; }
message Real   { double value = 1; }
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _F.LABEL_OPTIONAL, _F.LABEL_REPEATED
_MESSAGES: dict[str, list[tuple[str, int, int]]] = {
    "Number": [("value", _F.TYPE_INT64, _ONE)],
    "Real": [("value", _F.TYPE_DOUBLE, _ONE)],
    "Floats": [("values", _F.TYPE_DOUBLE, _MANY)],
    "Text": [("value", _F.TYPE_STRING, _ONE)],
    "Shape": [("nbytes", _F.TYPE_INT64, _ONE), ("stamp", _F.TYPE_INT64, _ONE)],
    "Data": [("value", _F.TYPE_BYTES, _ONE)],
}
PACKAGE = "seer_bench"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
"""The default limit is 4 MB, but the array has 120 MB."""


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, label) in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _build()
Number, Real, Floats = _CLASSES["Number"], _CLASSES["Real"], _CLASSES["Floats"]
Text, Shape, Data = _CLASSES["Text"], _CLASSES["Shape"], _CLASSES["Data"]

METHODS: dict[str, tuple[Any, Any]] = {
    "small": (Number, Number),
    "floats": (Number, Floats),
    "take": (Floats, Real),
    "array": (Shape, Data),
    "fail": (Text, Number),
}
"""Method -> type of the request, type of the reply."""
