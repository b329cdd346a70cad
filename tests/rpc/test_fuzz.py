"""The parsers accept or refuse hostile bytes, and a live gate continues to answer."""

import json
import string
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.campaign_fuzz import LIVE_SOURCE, PARSERS, fuzz_live, fuzz_parser
from seer.errors import ProtocolError
from seer.rpc.client._responses import ResponseReader
from seer.rpc.wire._http import HeadCache, parse_request
from seer.rpc.wire._protocol import WireError
from tests.rpc.serving import exchange, serving

names = st.text(string.ascii_letters + "-", min_size=1, max_size=12)
header = st.tuples(
    st.one_of(
        st.sampled_from(
            ["seer-call", "seer-tool-call", "seer-epoch", "content-length", "seer-deadline", "host"]
        ),
        names,
    ),
    st.one_of(st.text(max_size=20), st.integers().map(str), st.floats().map(str)),
)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_mutated_messages_are_refused_or_accepted_and_nothing_else(name: str) -> None:
    assert fuzz_parser(name, 4000, seed=0) < 4000


@given(st.lists(header, max_size=8), st.sampled_from(["GET", "POST", "PUT", ""]))
@settings(max_examples=100, deadline=None)
def test_any_head_is_parsed_or_refused(headers: list[tuple[str, str]], method: str) -> None:
    lines = [f"{method} /v1/call/f HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    head = "\r\n".join(lines).encode("utf-8", "surrogatepass")
    with suppress(WireError):
        parse_request(head, max_body=1000)
    with suppress(WireError):
        HeadCache(max_body=1000).parse(head)


@given(st.binary(max_size=300), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_response_or_refused(data: bytes, cut: int) -> None:
    reader = ResponseReader()
    with suppress(WireError):
        reader.feed(b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\n" + data[:cut])
        reader.feed(data[cut:])


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.full
def test_any_json_as_a_body_gets_an_answer_and_only_exposed_functions_run() -> None:
    with serving(LIVE_SOURCE) as served:
        path = served.socket_path("a")

        @given(json_values)
        @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        def check(value: Any) -> None:
            body = json.dumps(value).encode()
            head = b"POST /v1/call/small HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
            status, text = exchange(path, head + body)
            found = json.loads(text)
            if status == 200:
                assert isinstance(found["result"], int)
            else:
                assert found["error"]["type"] in ("ArgumentError", "ProtocolError", "HandleError")

        check()
        assert served.gate().call("small", (1,)) == 2


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_a_live_gate_survives_mutated_requests_and_leaks_nothing(replicas: int) -> None:
    with serving(LIVE_SOURCE, replicas=replicas) as served:
        gate = served.gate()
        gate.call("small", (1,))
        serving_all = served.pid
        opened = len(list(Path(f"/proc/{serving_all}/fd").iterdir()))
        before = gate.call("descriptors")
        statuses = fuzz_live(served.socket_path("a"), 1000, seed=0, epoch=gate.epoch)
        assert gate.call("small", (1,)) == 2
        assert gate.call("descriptors") <= before + 2
        assert statuses.get(400, 0) > 100
        assert 500 not in statuses
        health = served.control("GET", "/v1/health")
        assert (health["restarts"], health["pid"]) == (0, serving_all)
        assert all(copy["copy"] <= replicas for copy in health["copies"])
        assert len(list(Path(f"/proc/{serving_all}/fd").iterdir())) <= opened + 8


def test_a_deeply_nested_value_is_refused_not_a_crash() -> None:
    from seer.rpc.values._codec import decode

    for text in (b"[" * 100_000, b'{"a":' * 100_000, b"[" * 5000 + b"]" * 5000):
        with pytest.raises(ProtocolError):
            decode(text)
