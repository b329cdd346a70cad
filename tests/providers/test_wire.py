"""Frames and values arrive unchanged, and everything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.providers.agent import wire

_values = st.recursive(
    st.integers(-(2**63), 2**63) | st.binary(max_size=50),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


def _depth(value: "wire.Value") -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


@given(_values.filter(lambda value: _depth(value) <= 8))
def test_values_come_back_as_they_were(value: "wire.Value") -> None:
    assert wire.decode(wire.encode(value)) == value


@given(st.binary(max_size=200))
def test_junk_is_a_wire_error_and_nothing_else(junk: bytes) -> None:
    try:
        value = wire.decode(junk)
    except wire.WireError:
        return
    assert wire.decode(wire.encode(value)) == value


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 40), max_size=60))
def test_frames_are_found_in_any_pieces(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(wire.frame(b"D", payload) for payload in payloads)
    splitter, found, at = wire.Splitter(), list[bytes](), 0
    for cut in [*cuts, len(stream)]:
        splitter.feed(stream[at : at + cut])
        at += cut
        found += [payload for _, payload in iter(splitter.next, None)]
    assert found == payloads


@pytest.mark.parametrize("length", [0, wire.FRAME_LIMIT + 1, 2**32 - 1])
def test_frames_of_impossible_length_are_refused(length: int) -> None:
    splitter = wire.Splitter()
    splitter.feed(length.to_bytes(4, "big") + b"D")
    with pytest.raises(wire.WireError, match=str(length)):
        splitter.next()


@pytest.mark.parametrize(
    "junk",
    [b"", b"i", b"ie", b"i--1e", b"i1", b"5:abc", b"99999999999:x", b"l", b"d1:ae", b"di1ei2ee"]
    + [b"l" * 100 + b"e" * 100, b"i1ei2e", b"-1:", b"x", b"i" + b"9" * 5000 + b"e"],
)
def test_broken_values_are_refused(junk: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(junk)


def test_names_that_are_not_utf8_survive() -> None:
    assert wire.decode(wire.encode("a\udcff")) == b"a\xff"
    assert wire.to_text(b"a\xff") == "a\udcff"


def test_fields_of_the_wrong_type_are_refused() -> None:
    fields: wire.Message = {"number": 1, "text": b"x", "list": [b"x", 1], "dict": {"a": 1}}
    for get, key in (
        (wire.get_bytes, "number"),
        (wire.get_text, "missing"),
        (wire.get_int, "text"),
        (wire.get_list, "list"),
        (wire.get_list, "text"),
        (wire.get_ints, "list"),
        (wire.get_ints, "number"),
        (wire.get_dict, "number"),
        (wire.get_env, "dict"),
    ):
        with pytest.raises(wire.WireError, match=r"must|environment"):
            get(fields, key)


def test_a_message_must_be_a_dictionary() -> None:
    with pytest.raises(wire.WireError, match="dictionary"):
        wire.decode_message(wire.encode([1]))
