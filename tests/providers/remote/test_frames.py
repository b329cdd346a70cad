"""Frames arrive once, whole and in order, wherever the wire is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer.providers.remote.onhost import frames
from seer.providers.remote.onhost.frames import FrameError, Reliable, Splitter


@given(
    payloads=st.lists(st.binary(max_size=300), max_size=30),
    cuts=st.lists(st.integers(min_value=0, max_value=4000), max_size=6),
    chunk=st.integers(min_value=1, max_value=97),
)
@settings(max_examples=60, deadline=None)
def test_what_is_sent_arrives_once_and_in_order_through_any_cuts(
    payloads: list[bytes], cuts: list[int], chunk: int
) -> None:
    sender, receiver = Reliable(), Reliable()
    arrived: list[tuple[int, bytes]] = []
    wire = b"".join(
        sender.number(frames.DATA, number, data) for number, data in enumerate(payloads)
    )
    for length in [*cuts, None]:
        splitter = Splitter()
        passed = wire[:length]
        for start in range(0, len(passed), chunk):
            for kind, number, payload in splitter.feed(passed[start : start + chunk]):
                assert kind == frames.DATA
                receiver.took(payload)
                arrived.append((number, payload))
        # A new connection: the receiver says how much it has received, and the sender sends the
        # rest.
        wire = b"".join(sender.resume(receiver.received))
    assert arrived == list(enumerate(payloads))
    assert wire == b""


def test_what_is_acknowledged_is_forgotten() -> None:
    sender, receiver = Reliable(), Reliable()
    for number in range(3):
        sender.number(frames.DATA, 1, b"%d" % number)
    receiver.took(b"0")
    (kind, _, payload) = next(iter(Splitter().feed(receiver.ack())))
    assert kind == frames.ACK
    sender.acknowledged(payload)
    assert [frame[-1:] for frame in sender.resume(1)] == [b"1", b"2"]


def test_more_than_was_sent_cannot_be_acknowledged() -> None:
    sender = Reliable()
    sender.number(frames.DATA, 1, b"x")
    with pytest.raises(FrameError, match="2 frames acknowledged"):
        sender.resume(2)


def test_a_receiver_says_so_after_many_frames_or_many_bytes() -> None:
    receiver = Reliable()
    assert not any(receiver.took(b"x") for _ in range(63))
    assert receiver.took(b"x")
    receiver.ack()
    assert receiver.took(b"x" * 300_000)


@pytest.mark.parametrize("data", [b"\x00" * 9, b"\xff" + b"\x00" * 8, b"\x02" + b"\xff" * 8])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(Splitter().feed(data))


def test_the_words_of_a_new_wire_are_read_as_they_were_written() -> None:
    token = bytes(range(frames.TOKEN_BYTES))
    splitter = Splitter()
    sent = frames.attach(token, received=7, new=False, beat=1.5)
    ((kind, _, payload),) = splitter.feed(sent)
    assert (kind, frames.read_attach(payload)) == (frames.ATTACH, (token, 7, False, 1.5))
    ((kind, _, payload),) = splitter.feed(frames.attached(known=True, received=9))
    assert (kind, frames.read_attached(payload)) == (frames.ATTACHED, (True, 9))
    for read in (frames.read_attach, frames.read_attached, frames.read_credit):
        with pytest.raises(FrameError):
            read(b"?")
