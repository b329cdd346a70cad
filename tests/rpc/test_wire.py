"""Heads, pieces and responses: valid ones are parsed, and all others are refused."""

import pytest

from seer.rpc.client._responses import ResponseReader
from seer.rpc.wire._chunks import ChunkReader, split_chunk
from seer.rpc.wire._http import HeadCache, parse_request, response_head
from seer.rpc.wire._protocol import Piece, WireError, format_pieces, parse_pieces, parse_slots

HEAD = (
    b"POST /v1/call/f HTTP/1.1\r\nhost: gate\r\nseer-gate: 1\r\nseer-accept: shared\r\n"
    b"seer-epoch: abc\r\nseer-call: id-%d\r\ncontent-length: %d"
)


def test_a_request_says_what_its_head_says() -> None:
    request = parse_request(
        b"POST /v1/call/f HTTP/1.1\r\nHost: gate\r\nSeer-Deadline: 1.5\r\nseer-linger: 3\r\n"
        b"seer-release: 1,2\r\nseer-free: a,b\r\nseer-accept: frames\r\ncontent-length: 7\r\n"
        b"connection: close\r\nexpect: 100-continue",
        max_body=100,
    )
    assert (request.method, request.path, request.length) == ("POST", "/v1/call/f", 7)
    assert (request.deadline, request.linger) == (1.5, 3.0)
    assert (request.release, request.free) == ([1, 2], ["a", "b"])
    assert (request.frames, request.shared) == (True, False)
    assert request.close
    assert request.expects


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /v1/health",
        b"GET  /v1/health HTTP/1.1",
        b"GET v1 HTTP/1.1",
        b"GET /v1/h%20 HTTP/1.1",
        b"GET /v1/health HTTP/1.1\r\nno colon",
        b"GET /v1/health HTTP/1.1\r\n: empty",
        b"GET /v1/health HTTP/1.1\r\nname : space",
        b"GET /v1/health HTTP/1.1\r\n folded: x",
        b"GET /v1/health HTTP/1.1\r\na: 1\r\nA: 2",
        b"GET /v1/health HTTP/1.1\r\na: \x00",
        b"GET /v1/health HTTP/1.1\r\na: 1\nb: 2",
        b"GET /v1/health HTTP/1.1\r\ncontent-length: 3",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: +3",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 0x3",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 3 ",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: \xb2",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nexpect: nothing",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-call: ",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-call: ../x",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-call: " + b"x" * 65,
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-deadline: nan",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-deadline: -1",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-deadline: 1e9",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-release: 1,,2",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-accept: pickle",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\nseer-buffers: i1",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 1\r\ncontent-type: application/x-seer-frames",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 20\r\ncontent-type: application/x-seer-frames\r\n"
        b"seer-json: 2\r\nseer-buffers: i4,i100",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 20\r\ncontent-type: application/x-seer-frames\r\n"
        b"seer-json: 2\r\nseer-buffers: i4,s0+0+4",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 2\r\ncontent-type: application/x-seer-frames\r\n"
        b"seer-json: 2\r\nseer-memfds: 1\r\nseer-buffers: m1+0+4",
        b"POST /v1/x HTTP/1.1\r\ncontent-length: 2\r\ncontent-type: application/x-seer-frames\r\n"
        b"seer-json: 2\r\nseer-memfds: 65\r\nseer-buffers: m1+0+4",
    ],
)
def test_a_malformed_head_is_refused(head: bytes) -> None:
    if head.endswith(b"3 "):
        # Blanks around a value are allowed.
        assert parse_request(head, max_body=10).length == 3
        return
    with pytest.raises(WireError):
        parse_request(head, max_body=1000)


def test_a_remembered_head_means_the_same_as_a_parsed_one() -> None:
    heads = HeadCache(max_body=100)
    for i in range(5):
        head = HEAD % (i, 10 + i)
        body = bytes(10 + i)
        fresh = parse_request(head, max_body=100)
        if i == 0:
            assert heads.again(head + b"\r\n\r\n" + body) is None
            found = heads.parse(head)
        else:
            assert heads.again(head + b"\r\n\r\n" + body) == body
            found = heads.request
        for name in type(fresh).__slots__:
            assert getattr(found, name) == getattr(fresh, name), name


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"x\r\ncontent-length: 5\r\nseer-deadline: 1",
        b"x\r\ncontent-length: -5",
        b"x\r\ncontent-length: 5000",
        b"../x\r\ncontent-length: 5",
        b"x\r\ncontent-length: 5\r\ncontent-length: 6",
        b"x\r\nhost: again\r\ncontent-length: 5",
        b"\xff\r\ncontent-length: 5",
        b"x" * 65 + b"\r\ncontent-length: 5",
        b"x\r\ncontent-length: 4",
        b"x\r\ncontent-length: 6",
        b"x\r\ncontent-length: 0000000005",
        b"x\r\ncontent-length:  5",
        b"x \r\ncontent-length: 5",
        b"x\ncontent-length: 5",
    ],
)
def test_what_is_not_like_the_head_before_is_parsed_anew(tail: bytes) -> None:
    heads = HeadCache(max_body=1000)
    heads.parse(HEAD % (1, 2))
    start = HEAD[: HEAD.index(b"id-")]
    assert heads.again(start + b"x\r\ncontent-length: 5\r\n\r\n" + b"12345") == b"12345"
    assert heads.again(start + tail + b"\r\n\r\n" + b"12345") is None


def test_a_body_larger_than_allowed_is_not_taken_for_one_like_before() -> None:
    heads = HeadCache(max_body=4)
    heads.parse(HEAD % (1, 2))
    assert heads.again(HEAD % (2, 4) + b"\r\n\r\n" + b"1234") == b"1234"
    assert heads.again(HEAD % (2, 5) + b"\r\n\r\n" + b"12345") is None


def test_pieces_survive_their_text() -> None:
    pieces = [Piece("i", 0, 16, 5), Piece("s", 3, 64, 100), Piece("i", 0, 32, 1)]
    text = format_pieces(pieces)
    assert text == b"i5,s3+64+100,i1"
    again = parse_pieces(text, json_size=10, body_size=33)
    assert [(p.place, p.index, p.offset, p.size) for p in again] == [
        (p.place, p.index, p.offset, p.size) for p in pieces
    ]


@pytest.mark.parametrize("text", [b"", b"x1", b"i", b"i-1", b"s1+2", b"s1+2+3+4", b"m+1+1", b"i1,"])
def test_malformed_pieces_are_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        parse_pieces(text, json_size=0, body_size=1)


@pytest.mark.parametrize("text", [b"", b"1", b"1=x", b"=5", b"1=2,"])
def test_malformed_slots_are_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        parse_slots(text)


def answer(body: bytes, status: int = 200, extra: bytes = b"") -> bytes:
    prefix = b"seer-gate: 1\r\nseer-epoch: e1\r\n"
    return response_head(status, prefix, len(body), extra=extra) + body


def test_a_response_is_read_however_it_is_cut() -> None:
    message = b"HTTP/1.1 102 Processing\r\n\r\n" + answer(b'{"result":1}')
    for cut in range(1, len(message)):
        reader = ResponseReader()
        found = reader.feed(message[:cut])
        assert found is None
        found = reader.feed(message[cut:])
        assert found is not None
        assert (found.status, bytes(found.text), found.epoch) == (200, b'{"result":1}', "e1")


def test_one_response_after_the_other() -> None:
    reader = ResponseReader()
    for i in range(20):
        body = b'{"result":%d}' % (10**i)
        found = reader.feed(answer(body))
        assert found is not None
        assert bytes(found.text) == body
        whole = answer(body, status=500)
        assert reader.feed(whole[:30]) is None
        found = reader.feed(whole[30:])
        assert found is not None
        assert found.status == 500


@pytest.mark.parametrize(
    "message",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nseer-gate: 2\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\ncontent-length: x\r\n\r\n",
        b"x" * 20_000,
        answer(b"12") + b"more",
    ],
)
def test_what_is_no_response_of_a_gate_is_refused(message: bytes) -> None:
    with pytest.raises(WireError):
        ResponseReader().feed(message)


def test_chunks_are_read_however_they_are_cut() -> None:
    message = b'd\r\n{"item":1234}\r\n0\r\n\r\n'.replace(b"d\r\n", b"%x\r\n" % 13, 1)
    for cut in range(1, len(message)):
        reader = ChunkReader()
        found = reader.feed(message[:cut]) + reader.feed(message[cut:])
        assert found == [b'{"item":1234}', None]


@pytest.mark.parametrize(
    "message", [b"zz\r\n", b"x" * 30, b"1\r\nab\r\n", b"-1\r\n\r\n", b"7fffffff\r\n"]
)
def test_malformed_chunks_are_refused(message: bytes) -> None:
    with pytest.raises(WireError):
        ChunkReader().feed(message)


@pytest.mark.parametrize(
    "chunk",
    [b"no line", b'{"item":1}\nrest', b'{"buffers":[4]}\n12345', b'{"buffers":["x"]}\nxxxx'],
)
def test_a_chunk_that_is_not_as_it_says_is_refused(chunk: bytes) -> None:
    with pytest.raises(WireError):
        split_chunk(chunk)
