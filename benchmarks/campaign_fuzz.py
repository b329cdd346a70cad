"""Fuzz the gate's parsers and a live gate: `python benchmarks/campaign_fuzz.py`.

Valid messages are changed at random (bits, bytes, cuts, repeats, splices, odd numbers) and fed to
each parser. A parser may accept a message, or refuse it with its own error; anything else is a
finding. The live part sends the same kind of bytes to a served interface over its real socket.
After each batch, it checks that the interface still answers, that only the exposed function ran,
and that no descriptor leaked. `tests/rpc/test_fuzz.py` runs the same code with smaller numbers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks._common import header, machine  # noqa: E402
from seer.errors import ProtocolError, SeerError  # noqa: E402
from seer.rpc.client._errors import error_from  # noqa: E402
from seer.rpc.client._responses import ResponseReader  # noqa: E402
from seer.rpc.values._codec import decode, decode_plain_call, decode_result  # noqa: E402
from seer.rpc.wire._chunks import ChunkReader, split_chunk  # noqa: E402
from seer.rpc.wire._http import HeadCache, parse_request  # noqa: E402
from seer.rpc.wire._protocol import WireError  # noqa: E402

FRAMES = b"content-type: application/x-seer-frames\r\n"
REQUESTS = [
    b"GET /v1/health HTTP/1.1\r\nhost: gate\r\nseer-gate: 1\r\n\r\n",
    b"POST /v1/call/small HTTP/1.1\r\nhost: gate\r\nseer-gate: 1\r\nseer-accept: shared\r\n"
    b"seer-epoch: 0123456789abcdef\r\nseer-call: 0123-1\r\ncontent-length: 8\r\n\r\n[[1],{}]",
    b"POST /v1/call/small HTTP/1.1\r\nseer-call: 0123-2\r\nseer-tool-call: t.1\r\n"
    b"seer-deadline: 5.5\r\nseer-linger: 1\r\n"
    b"seer-release: 0,1\r\nseer-free: ab\r\ncontent-length: 12\r\n\r\n" + b'{"args":[1]}',
    b"POST /v1/call/small HTTP/1.1\r\n" + FRAMES + b"seer-json: 8\r\nseer-buffers: i4,i2\r\n"
    b"content-length: 34\r\n\r\n[[1],{}]" + bytes(26),
    b"POST /v1/call/small HTTP/1.1\r\n" + FRAMES + b"seer-json: 8\r\nseer-memfds: 1\r\n"
    b"seer-buffers: m0+0+4\r\ncontent-length: 8\r\n\r\n[[1],{}]",
    b"POST /v1/cancel/0123-1 HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    b"GET /v1/result/0123-1 HTTP/1.1\r\n\r\n",
    b"POST /v1/fetch/00112233445566778899aabbccddeeff HTTP/1.1\r\ncontent-length: 7\r\n\r\n[[],{}]",
    b"POST /v1/free/00112233445566778899aabbccddeeff HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\ncontent-type: application/json\r\n"
    b'content-length: 12\r\n\r\n{"result":1}',
    b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 500 Internal Server Error\r\nseer-gate: 1\r\n"
    b"content-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\n" + FRAMES + b"seer-json: 2\r\nseer-buffers: s0+0+8,i3\r\n"
    b"seer-slots: 0=65536\r\ncontent-length: 19\r\n\r\n{}" + bytes(17),
    b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\ncontent-type: application/x-ndjson\r\n"
    b"transfer-encoding: chunked\r\n\r\n",
]
CHUNKS = [b'a\r\n{"item":1}\r\n0\r\n\r\n', b'10\r\n{"buffers":[1]}\n\r\n']
LINES = [b'{"item":1}\n', b'{"item":1,"buffers":[4]}        \n' + bytes(4)]
ERRORS = [
    b'{"error":{"type":"ArgumentError","message":"x"}}',
    b'{"error":{"type":"RemoteError","name":"E","bases":["ValueError"],"message":"m"}}',
]
VALUES = [
    b'[[1,"a",null,true,1.5],{"k":[1,2,{"x":{}}]}]',
    b'{"args":[{"$seer":"tuple","items":[1,2]}],"kwargs":{}}',
    b'[[{"$seer":"array","buffer":0,"dtype":"<f4","shape":[2,2]}],{}]',
    b'[[{"$seer":"floats","buffer":0},{"$seer":"bytes","buffer":0}],{}]',
    b'[[{"$seer":"handle","id":"00"}],{"a":{"$seer":"dict","items":[[1,2]]}}]',
]
CALLS = [
    b'[[1,"a",null,true,1.5],{}]',
    b'[[],{"k":[1,2,{"x":{}}],"l":"\\u00e9\\ud800"}]',
    b"[[NaN,Infinity,1e300,123456789012345678901234567890],{}]",
    *VALUES[1:2],
]
ANSWERS = [
    b'{"result":1}',
    b'{"result":[1.5,null,true,"x"]}',
    b'{"result":{"a":{"b":[[]]}}}',
    b'{"result":{"$seer":"tuple","items":[1,2]}}',
]
ODD = [b"0", b"-1", b"1e9", b"99999999999999999999", b"\r\n", b"\r\n\r\n", b"\x00", b"\xff", b"NaN"]
ODD += [
    b"seer-",
    b"content-length: ",
    b"$seer",
    b"[" * 50,
    b'{"$seer":',
    b"%s%n",
    b"../",
    b"\xc2\xb2",
]


def mutate(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Change a message a little, or a lot."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(8)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << chance.randrange(8)
        elif kind == 1 and out:
            out[at % len(out)] = chance.randrange(256)
        elif kind == 2:
            del out[at : at + chance.choice((1, 2, 8, 1000))]
        elif kind == 3:
            out[at:at] = chance.choice(ODD)
        elif kind == 4:
            piece = out[at : at + chance.randrange(1, 40)]
            out[at:at] = piece * chance.choice((1, 2, 50))
        elif kind == 5:
            other = chance.choice(others)
            out[at:] = other[chance.randrange(len(other) + 1) :]
        elif kind == 6:
            out[at:at] = chance.randbytes(chance.choice((1, 4, 64)))
        else:
            lines = bytes(out).split(b"\r\n")
            chance.shuffle(lines)
            out = bytearray(b"\r\n".join(lines))
    return bytes(out[:20_000])


def _parse_head(data: bytes) -> None:
    head = data.partition(b"\r\n\r\n")[0]
    heads = HeadCache(max_body=1 << 30)
    with suppress(WireError):
        heads.parse(REQUESTS[1].partition(b"\r\n\r\n")[0])
    body = heads.again(data)
    try:
        found = parse_request(head, max_body=1 << 30)
    except WireError:
        if body is not None:
            raise AssertionError("a head that is refused was taken for the one before") from None
        raise
    if body is not None:
        again = heads.request
        assert body == data[len(head) + 4 :]
        for name in type(found).__slots__:
            assert getattr(found, name) == getattr(again, name), name


def _read_responses(data: bytes) -> None:
    reader = ResponseReader()
    for start in range(0, len(data), 50):
        if reader.feed(data[start : start + 50]) is not None:
            reader.take_rest()


def _read_error(data: bytes) -> None:
    error = error_from(data)
    if isinstance(error, ProtocolError):
        raise error


def _decode(data: bytes) -> None:
    decode(data, [bytearray(16)], extra={"handle": lambda found: found})


def _decode_call(data: bytes) -> None:
    found = decode_plain_call(data)
    value = decode(data)
    if found is not None and repr(found) != repr(value):
        raise AssertionError(f"the shorter way reads {found!r}, the longer one {value!r}")


def _decode_result(data: bytes) -> None:
    def outcome(read: Callable[[], object]) -> str:
        try:
            return repr(read())
        except (KeyError, TypeError) as error:  # JSON that no gate sends
            return repr(error)

    shorter = outcome(lambda: decode_result(data, torch=False, extra={}))
    longer = outcome(lambda: decode(data)["result"])
    if shorter != longer:
        raise AssertionError(f"the shorter way reads {shorter}, the longer one {longer}")


PARSERS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "request heads": (_parse_head, REQUESTS),
    "responses": (_read_responses, RESPONSES),
    "chunks": (lambda data: ChunkReader().feed(data), CHUNKS),
    "stream items": (split_chunk, LINES),
    "errors": (_read_error, ERRORS),
    "values": (_decode, VALUES),
    "usual calls": (_decode_call, CALLS),
    "usual answers": (_decode_result, ANSWERS),
}


def fuzz_parser(name: str, count: int, seed: int) -> int:
    """Feed a parser `count` mutated messages, and return how many it accepted.

    Raises:
        AssertionError: The parser raised an unexpected error; the message contains the input.
    """
    parse, samples = PARSERS[name]
    chance = random.Random(f"{name}-{seed}")
    accepted = 0
    for number in range(count):
        data = mutate(chance.choice(samples), samples, chance)
        try:
            parse(data)
        except (WireError, ProtocolError):
            continue
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}, input {number}: {data!r}") from error
        accepted += 1
    return accepted


def fuzz_live(path: Path, count: int, seed: int, epoch: str) -> dict[int, int]:
    """Send mutated requests to a gate's socket, and count the statuses (0 means no answer).

    Half of them follow a valid request of the same kind on their connection, so that the gate's
    fast path reads them, if any path does.
    """
    import array
    import os
    import socket

    chance = random.Random(f"live-{seed}")
    statuses: dict[int, int] = {}
    connected: socket.socket | None = None
    for _ in range(count):
        if connected is None:
            connected = socket.socket(socket.AF_UNIX)
            connected.settimeout(0.02)
            connected.connect(str(path))
        data = mutate(chance.choice(REQUESTS), REQUESTS, chance)
        status = 0
        try:
            if chance.random() < 0.5:
                usual = REQUESTS[1].replace(b"0123456789abcdef", epoch.encode())
                connected.sendall(usual.replace(b"0123-1", b"%x" % chance.getrandbits(60)))
                connected.recv(65536)
                data = mutate(usual, [usual], chance)
            if chance.random() < 0.05:
                fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
                try:
                    rights = array.array("i", [fd] * chance.choice((1, 2, 70)))
                    connected.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                finally:
                    os.close(fd)
            else:
                connected.sendall(data)
            if chance.random() < 0.1:
                connected.shutdown(socket.SHUT_WR)
            answer = connected.recv(65536)
            if answer.startswith(b"HTTP/1.1 ") and answer[9:12].isdigit():
                status = int(answer[9:12])
        except OSError:
            status = 0
        statuses[status] = statuses.get(status, 0) + 1
        if status != 200 or chance.random() < 0.2:
            connected.close()
            connected = None
    if connected is not None:
        connected.close()
    return statuses


LIVE_SOURCE = """
    import os
    ran = {"small": 0}

    @expose
    def small(x: int) -> int:
        ran["small"] += 1
        return x + 1

    def secret() -> None:
        os._exit(99)

    @expose
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))
"""


def main() -> int:
    """Run the campaign, and write the results."""
    from tests.rpc.serving import serving

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs for each parser")
    parser.add_argument("--live", type=int, default=200_000, help="requests to a live gate")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    where = machine()
    found: dict[str, object] = {"seed": arguments.seed, "parsers": {}, "findings": 0}
    rows: list[str] = []
    for name in PARSERS:
        begin = time.monotonic()
        accepted = fuzz_parser(name, arguments.count, arguments.seed)
        taken = time.monotonic() - begin
        rows.append(f"| {name} | {arguments.count:,} | {accepted:,} | {taken:.0f} s |")
        print(rows[-1], flush=True)
    with serving(LIVE_SOURCE) as served:
        gate = served.gate()
        before = gate.call("descriptors")
        statuses: dict[int, int] = {}
        begin = time.monotonic()
        for batch in range(max(arguments.live // 10_000, 1)):
            for status, count in fuzz_live(
                served.socket_path("a"),
                min(arguments.live, 10_000),
                arguments.seed + batch,
                gate.epoch,
            ).items():
                statuses[status] = statuses.get(status, 0) + count
            if gate.call("small", (1,)) != 2:
                raise AssertionError("the gate gives wrong answers")
        leaked = gate.call("descriptors") - before
        taken = time.monotonic() - begin
    rows.append(f"| live gate | {arguments.live:,} | {statuses.get(200, 0):,} | {taken:.0f} s |")
    print(rows[-1], dict(sorted(statuses.items())), "descriptors more:", leaked)
    found["statuses"] = statuses
    text = header("Fuzzing the gate", {}, where)
    text += "\nNo input made a parser raise anything but its own error, and the"
    text += " live gate answered after every batch.\n\n| parser | inputs | accepted | time |\n"
    text += "|---|---:|---:|---:|\n" + "\n".join(rows) + "\n"
    target = ROOT / "benchmarks" / "results"
    (target / "gate-fuzz.md").write_text(text)
    (target / "gate-fuzz.json").write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    with suppress(SeerError):
        raise SystemExit(main())
