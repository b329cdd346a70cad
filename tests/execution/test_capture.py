"""The output of an execution: complete on disk, bounded in memory, short for the agent.

It tests the capture itself, with output that no kernel would send in this order.
"""

import base64
import contextlib
import errno
from pathlib import Path

import pytest

from seer.execution import ExecutionError, RichOutput, StreamText
from seer.execution import _capture as capture_module
from seer.execution._capture import SHOWN, Capture, Transcript, tidy
from seer.execution._result import read_image

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_short_text_is_shown_as_it_is_and_makes_no_file(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t")
    transcript.write("hello ")
    transcript.write("world\n")
    assert transcript.shown("e1") == "hello world\n"
    assert transcript.read(6, 5) == "world"
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("piece", [1, 999, 100_000])
def test_long_text_is_whole_on_disk_and_shortened_with_a_mark(tmp_path: Path, piece: int) -> None:
    text = "".join(f"{n:06d}\n" for n in range(6000))
    transcript = Transcript(tmp_path / "t")
    for start in range(0, len(text), piece):
        transcript.write(text[start : start + piece])
    shown = transcript.shown("e7")
    assert len(shown) < SHOWN + 200
    assert shown.startswith("000000\n")
    assert shown.endswith("005999\n")
    left_out = len(text) - SHOWN
    assert f"{left_out:,} bytes left out" in shown
    head, _, rest = shown.partition("\n[... ")
    offset = int(rest.split("offset=")[1].split(")")[0])
    assert "read_output(result_id='e7'" in rest
    assert head == text[:offset]
    assert (tmp_path / "t").read_text() == text
    assert head + transcript.read(offset, len(text)) == text
    transcript.close()


def test_text_may_come_after_the_file_was_closed(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t")
    transcript.write("a" * SHOWN * 2)
    transcript.close()
    transcript.write("late")
    assert transcript.read(SHOWN * 2, 10) == "late"
    assert str(tmp_path / "t") not in _open_files()


def _open_files() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            found.append(str(entry.readlink()))
    return found


def test_text_that_comes_after_all_was_discarded_makes_no_file(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t")
    transcript.write("a" * SHOWN * 2)
    transcript.discard()
    transcript.write("b" * SHOWN * 2)
    assert list(tmp_path.iterdir()) == []


def test_characters_cut_by_an_offset_are_left_out(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t")
    transcript.write("äöü")
    assert transcript.read(1, 3) == "ö"


def test_what_is_kept_on_disk_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "ON_DISK", SHOWN * 2)
    capture = Capture("e1", tmp_path)
    for _ in range(5):
        capture.stream("stdout", "x" * SHOWN)
    assert (tmp_path / "e1.txt").stat().st_size == SHOWN * 2
    assert "the rest is not kept" in capture.notes[0]
    assert capture.transcript.shown("e1").endswith("x")
    capture.transcript.close()


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "t").symlink_to(tmp_path / "victim")
    transcript = Transcript(tmp_path / "t")
    transcript.write("x" * SHOWN * 2)
    assert "symbolic links" in transcript.cut
    assert transcript.read(0, 3) == "xxx"
    assert (tmp_path / "victim").read_text() == "precious"


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t")
    transcript.write("x" * SHOWN * 2)
    transcript.close()
    assert (tmp_path / "t").stat().st_mode & 0o077 == 0


def test_terminal_codes_and_overwritten_lines_are_tidied() -> None:
    assert tidy("a\r\nb\n10%\r20%\r30%\ndone\x1b[0m\0") == "a\nb\n30%\ndone"
    assert tidy("100%\r") == "100%"


def test_printed_text_in_memory_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "IN_MEMORY", 10)
    capture = Capture("e1", tmp_path)
    for _ in range(4):
        capture.stream("stdout", "12345678")
    text = "".join(output.text for output in capture.outputs)
    assert text.startswith("1234567812\n[... more was printed")
    assert text.count("more was printed") == 1
    assert capture.transcript.length == 32


def test_displayed_objects_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "RICH_COUNT", 2)
    capture = Capture("e1", tmp_path)
    for _ in range(4):
        capture.rich({"text/plain": "x"})
    assert len(capture.outputs) == 2
    assert len(capture.notes) == 1
    monkeypatch.setattr(capture_module, "RICH_BYTES", 10)
    other = Capture("e2", tmp_path)
    other.rich({"text/plain": "x" * 11})
    assert other.outputs == []


def test_an_image_is_recognised_by_its_bytes(tmp_path: Path) -> None:
    capture = Capture("e1", tmp_path)
    capture.rich({"image/png": base64.b64encode(PNG).decode(), "text/plain": "<Figure>"})
    (output,) = capture.outputs
    assert isinstance(output, RichOutput)
    assert output.image is not None
    assert (output.image.mime, output.image.width, output.image.height) == ("image/png", 1, 1)
    assert "[image/png, 1x1]" in capture.transcript.shown("e1")


@pytest.mark.parametrize("data", ["not base64!", base64.b64encode(b"<svg/>").decode(), ""])
def test_what_only_claims_to_be_an_image_is_none(tmp_path: Path, data: str) -> None:
    capture = Capture("e1", tmp_path)
    capture.rich({"image/png": data})
    (output,) = capture.outputs
    assert isinstance(output, RichOutput)
    assert output.image is None


def test_sizes_are_read_from_headers() -> None:
    gif = read_image(b"GIF89a" + (7).to_bytes(2, "little") + (9).to_bytes(2, "little"))
    assert gif is not None
    assert (gif.width, gif.height) == (7, 9)
    start = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08"
    jpeg = read_image(start + (20).to_bytes(2, "big") + (30).to_bytes(2, "big") + b"\x03")
    assert jpeg is not None
    assert (jpeg.width, jpeg.height) == (30, 20)
    assert read_image(b"RIFF\0\0\0\0WEBPVP8 ") is not None
    assert read_image(b"BM....") is None


def test_clearing_forgets_outputs_but_not_the_transcript(tmp_path: Path) -> None:
    capture = Capture("e1", tmp_path)
    capture.stream("stdout", "before")
    capture.clear()
    capture.stream("stderr", "after")
    assert capture.outputs == [StreamText(name="stderr", text="after")]
    assert capture.transcript.shown("e1") == "beforeafter"


def test_a_failure_starts_on_a_line_of_its_own(tmp_path: Path) -> None:
    capture = Capture("e1", tmp_path)
    capture.stream("stdout", "no newline")
    capture.fail(ExecutionError(name="KernelDied", message="gone"))
    assert capture.transcript.shown("e1") == "no newline\nKernelDied: gone\n"


def test_output_is_told_as_it_comes(tmp_path: Path) -> None:
    told: list[object] = []
    capture = Capture("e1", tmp_path, told.append)
    capture.stream("stdout", "a")
    capture.stream("stdout", "b")
    assert told == [StreamText(name="stdout", text="a"), StreamText(name="stdout", text="b")]


def test_a_note_names_the_true_cause_of_lost_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    capture = Capture("e1", tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("seer.execution._capture.os.open", none_left)
        capture.stream("stdout", "a" * (SHOWN + 1))
    assert capture.notes == ["From byte 0 on, output is not kept: Too many open files."]
    monkeypatch.setattr("seer.execution._capture.ON_DISK", SHOWN + 5)
    capture = Capture("e2", tmp_path)
    capture.stream("stdout", "a" * (SHOWN + 6))
    assert capture.notes == ["More than 0 MiB was printed; the rest is not kept."]
    capture.transcript.discard()


def test_a_full_disk_costs_text_and_not_the_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript = Transcript(tmp_path / "out")
    transcript.write("a" * (SHOWN + 1000))

    def full(_fd: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("seer.execution._capture.os.write", full)
        transcript.write("b" * 5000)
    transcript.write("the end")
    assert transcript.cut == "From byte 21,000 on, output is not kept: No space left on device."
    assert (transcript.length, transcript.on_disk) == (SHOWN + 6007, SHOWN + 1000)
    assert transcript.shown("x").endswith("the end")
    assert transcript.read(SHOWN + 990, 100) == "a" * 10
    transcript.discard()
    assert not list(tmp_path.iterdir())
