"""The cost of encoding and decoding values of the wire format, against bare `json`.

Run it with `python benchmarks/bench_values.py`; it takes a few seconds. Times are the best of five
rounds, in microseconds: the least disturbed round shows the cost of the code, not of other load.
With a GPU, it also times the copy of a 120 MB tensor to memory.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
import timeit
from collections.abc import Callable
from typing import Any

from seer.rpc.interface._schema import Function, Parameter
from seer.rpc.values._arrays import TensorBuffer
from seer.rpc.values._codec import decode, encode, encode_call
from seer.rpc.values._hints import Hint

SECONDS_PER_ROUND = 0.02


def best(work: Callable[[], Any]) -> float:
    """The time of one `work()` in microseconds."""
    timer = timeit.Timer(work)
    number = 1
    while (spent := timer.timeit(number)) < SECONDS_PER_ROUND:
        number = max(number * 2, int(number * SECONDS_PER_ROUND / max(spent, 1e-9)))
    return min(timer.repeat(repeat=5, number=number)) / number * 1e6


def values() -> dict[str, Any]:
    """The values to measure, by name."""
    chosen = random.Random(0)
    floats = [chosen.random() for _ in range(4096)]
    return {
        "text": "hello world",
        "small dict": {"num_layers": 12, "hidden_size": 768, "name": "gpt2"},
        "nested": {"a": [1, 2, 3], "b": {"c": [{"d": None}], "e": "x"}},
        "100 records": [{"token": "the", "id": i, "p": 0.5} for i in range(100)],
        "4096 floats": {"embedding": floats},
        "4096 ints": list(range(4096)),
        "12 x 768 floats": [floats[:768] for _ in range(12)],
    }


def table() -> None:
    """Print the cost of encoding and decoding."""
    print(f"{'value':18} {'dumps':>9} {'encode':>9} {'loads':>9} {'decode':>9}   (us)")
    for name, value in values().items():
        buffers: list[Any] = []
        text = encode(value, buffers)
        plain = json.dumps(value).encode()
        times = [
            best(lambda value=value: json.dumps(value).encode()),
            best(lambda value=value: encode(value, [])),
            best(lambda plain=plain: json.loads(plain)),
            best(lambda text=text, buffers=buffers: decode(text, buffers)),
        ]
        print(f"{name:18} " + " ".join(f"{time:9.2f}" for time in times))


def calls() -> None:
    """Print the cost of a call's arguments."""
    parameters = (
        Parameter("text", "positional_or_keyword", Hint("str")),
        Parameter("n", "positional_or_keyword", Hint("int"), default="3"),
    )
    function = Function("f", parameters, Hint("dict"))
    print(f"{'encode_call':18} {best(lambda: encode_call('f', ('hello', 3), {}, [])):9.2f}")
    print(f"{'bind':18} {best(lambda: function.bind(['hello', 3], {})):9.2f}")
    print(f"{'bind by name':18} {best(lambda: function.bind(['hello'], {'n': 3})):9.2f}")


def arrays() -> None:
    """Print the cost of an array and of its copy; nothing without numpy."""
    try:
        import numpy
    except ImportError:
        return
    value = {"activations": numpy.zeros((12, 768), "f4"), "layer": 3}
    buffers: list[Any] = []
    text = encode(value, buffers)
    print(f"{'array in a dict':18} {'':9} {best(lambda: encode(value, [])):9.2f} {'':9} ", end="")
    print(f"{best(lambda: decode(text, buffers)):9.2f}")


def gpu() -> None:
    """Print the time to copy 120 MB from a GPU to several kinds of memory, if there is a GPU."""
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    tensor = torch.rand(30_000_000, device="cuda")
    buffer = TensorBuffer(tensor)
    pinned = torch.empty(30_000_000, pin_memory=True)
    memory = mmap.mmap(-1, buffer.nbytes)
    registered = mmap.mmap(-1, buffer.nbytes)
    memory[:] = bytes(buffer.nbytes)
    registered[:] = bytes(buffer.nbytes)
    view = memoryview(registered)
    address = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
    torch.cuda.cudart().cudaHostRegister(address, buffer.nbytes, 0)

    def to_pinned() -> None:
        pinned.copy_(tensor)

    rows = {
        "pinned by torch": to_pinned,
        "registered": lambda: buffer.copy_into(view),
        "pageable": lambda: buffer.copy_into(memoryview(memory)),
    }
    print(f"\n120 MB from {torch.cuda.get_device_name()} to memory (ms)")
    for name, work in rows.items():
        work()
        print(f"{name:18} {best(work) / 1000:9.2f}")


def main() -> int:
    """Measure and print everything."""
    table()
    calls()
    arrays()
    gpu()
    return 0


if __name__ == "__main__":
    sys.exit(main())
