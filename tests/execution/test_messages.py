"""Jupyter messages are signed, and malformed ones are rejected.

It tests the parser itself, with messages that no real kernel sends.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.errors import ProtocolError
from seer.execution import RichOutput
from seer.execution._capture import Capture
from seer.execution.kernel._kernel import publish
from seer.execution.kernel._messages import Message, Signer

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_message_is_read_as_it_was_made() -> None:
    signer = Signer()
    message_id, frames = signer.request("execute_request", {"code": "1 + 1", "odd": "\ud800"})
    message = signer.read([b"some", b"identity", *frames])
    assert message.kind == "execute_request"
    assert message.content["code"] == "1 + 1"
    assert message.parent == ""
    assert len(message_id) == 32


def test_a_message_signed_with_another_key_is_refused() -> None:
    _, frames = Signer().request("status", {})
    with pytest.raises(ProtocolError, match="signature"):
        Signer().read(frames)


@pytest.mark.parametrize("part", [2, 3, 4, 5])
def test_a_changed_part_is_refused(part: int) -> None:
    signer = Signer()
    _, frames = signer.request("status", {"a": 1})
    frames[part] = b'{"b": 2}'
    with pytest.raises(ProtocolError, match="signature"):
        signer.read(frames)


@pytest.mark.parametrize(
    "frames", [[], [b"x"], [b"<IDS|MSG>"], [b"<IDS|MSG>", b"sig", b"{}", b"{}"]]
)
def test_a_message_that_is_too_short_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        Signer().read(frames)


@pytest.mark.parametrize("content", [b"[1]", b"nonsense", b"[" * 200_000, b"\xff", b'"text"'])
def test_content_that_is_no_mapping_is_refused_even_when_signed(content: bytes) -> None:
    signer = Signer()
    _, frames = signer.request("status", {})
    parts = [*frames[2:5], content]
    signature = signer._sign(parts)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ProtocolError):
        signer.read([b"<IDS|MSG>", signature, *parts])


KINDS = [
    "stream",
    "display_data",
    "execute_result",
    "update_display_data",
    "error",
    "clear_output",
    "execute_input",
    "comm_open",
    "",
]


@given(kind=st.sampled_from(KINDS), content=st.dictionaries(st.text(), json_values, max_size=4))
def test_no_content_breaks_the_record(
    kind: str, content: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    capture = Capture("e1", tmp_path_factory.getbasetemp())
    publish(Message(kind=kind, parent="", content=content), capture)
    publish(Message(kind=kind, parent="", content={"data": content, "transient": content}), capture)
    capture.transcript.shown("e1")


def test_outputs_are_taken_in_order(tmp_path: Path) -> None:
    capture = Capture("e1", tmp_path)
    for kind, content in [
        ("execute_input", {"execution_count": 3}),
        ("stream", {"name": "stdout", "text": "a"}),
        ("stream", {"name": "stdout", "text": "b"}),
        ("display_data", {"data": {"text/plain": "shown"}, "transient": {"display_id": "d"}}),
        ("stream", {"name": "stderr", "text": "c"}),
        ("update_display_data", {"data": {"text/plain": "new"}, "transient": {"display_id": "d"}}),
        ("execute_result", {"data": {"text/plain": "4", "application/x+json": {"a": [1]}}}),
    ]:
        publish(Message(kind=kind, parent="", content=content), capture)
    texts = [output.text for output in capture.outputs]
    assert texts == ["ab", "new", "c", "4"]
    result = capture.outputs[-1]
    assert isinstance(result, RichOutput)
    assert json.loads(result.data["application/x+json"]) == {"a": [1]}
    assert capture.execution_count == 3


def test_an_error_is_readable_text(tmp_path: Path) -> None:
    capture = Capture("e1", tmp_path)
    lines = ["\x1b[31m---\x1b[39m", "\x1b]0;title\x07ValueError: no"]
    content: dict[str, object] = {"ename": "ValueError", "evalue": "no", "traceback": lines}
    publish(Message(kind="error", parent="", content=content), capture)
    assert capture.error is not None
    assert capture.error.traceback == "---\nValueError: no"


@pytest.mark.parametrize(
    ("text", "read"),
    [("a\ud800b", "a?b"), ("\udc80", "?"), ("\ud83e\uddea", "🧪"), ("🧪", "🧪")],
)
def test_half_a_character_is_replaced_and_whole_ones_are_kept(text: str, read: str) -> None:
    signer = Signer()
    content = {"name": "stdout", "text": text, text: text}
    message = signer.read(signer.request("stream", content)[1])
    assert message.content["text"] == read
    assert read in message.content


def test_names_of_forms_and_displays_have_bounds(tmp_path: Path) -> None:
    capture = Capture("e1", tmp_path)
    huge = "m" * 10_000_000
    content = {"data": {huge: "x", "text/plain": "kept"}, "transient": {"display_id": huge}}
    publish(Message(kind="display_data", parent="", content=content), capture)
    publish(Message(kind="update_display_data", parent="", content=content), capture)
    assert [output.data for output in capture.outputs if isinstance(output, RichOutput)] == [
        {"text/plain": "kept"}
    ]
    assert capture.memory < 1000
