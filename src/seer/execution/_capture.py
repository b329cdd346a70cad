"""Collects what an execution prints and displays: a part in memory, all of it in a transcript."""

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from seer.execution._result import (
    ExecutionError,
    Image,
    OutputPart,
    RichOutput,
    StreamName,
    StreamText,
    decode_base64,
    read_image,
)

logger = logging.getLogger(__name__)

OnOutput = Callable[[OutputPart], object]
"""Called on Seer's loop for each piece of output, while the code runs; it must not block."""

IN_MEMORY = 4 * 1024 * 1024
"""Characters of printed text that a result contains."""
RICH_BYTES = 64 * 1024 * 1024
RICH_COUNT = 200
_PIECE = 65536
SHOWN = 20_000
"""Bytes of one execution's output that an agent sees."""
ON_DISK = 256 * 1024 * 1024
"""Bytes of one execution's output that are kept."""
_HEAD, _TAIL = SHOWN * 3 // 5, SHOWN * 2 // 5

_TERMINAL_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]"
)


class Capture:
    """The output of one execution so far. Only the loop uses it."""

    def __init__(self, result_id: str, folder: Path, on_output: OnOutput | None = None) -> None:
        self.result_id = result_id
        self.transcript = Transcript(folder / f"{result_id}.txt")
        self.outputs: list[OutputPart] = []
        self.notes: list[str] = []
        self.error: ExecutionError | None = None
        self.execution_count: int | None = None
        """The kernel's number for the execution."""
        self._on_output = on_output
        self._displays: dict[str, int] = {}
        self._chars = 0
        self._rich_bytes = 0
        self._rich_count = 0

    def stream(self, name: StreamName, text: str) -> None:
        """Add printed text."""
        self._write(text)
        room = IN_MEMORY - self._chars
        self._chars += len(text)
        if room > 0:
            self._append(name, text[:room])
            if len(text) > room:
                mark = f"read_output(result_id={self.result_id!r}) has all of it"
                self._append(name, f"\n[... more was printed; {mark} ...]\n")
        self._tell(StreamText(name=name, text=text))

    def rich(self, data: dict[str, str], *, is_result: bool = False, display_id: str = "") -> None:
        """Add a displayed object."""
        size = sum(map(len, data.values()))
        if self._rich_bytes + size > RICH_BYTES or self._rich_count >= RICH_COUNT:
            self.note("More was displayed than one execution may show; the rest is left out.")
            return
        self._rich_bytes += size
        self._rich_count += 1
        output = RichOutput(data=data, is_result=is_result, image=_image_of(data))
        if display_id:
            self._displays[display_id] = len(self.outputs)
        self.outputs.append(output)
        self._write_rich(output)

    def update(self, data: dict[str, str], display_id: str) -> None:
        """Replace a displayed object with its new form."""
        index = self._displays.get(display_id)
        size = sum(map(len, data.values()))
        if index is None or self._rich_bytes + size > RICH_BYTES:
            return
        old = self.outputs[index]
        if isinstance(old, RichOutput):
            self._rich_bytes += size - sum(map(len, old.data.values()))
        output = RichOutput(data=data, image=_image_of(data))
        self.outputs[index] = output
        self._tell(output)

    @property
    def memory(self) -> int:
        """The approximate size of the outputs in bytes."""
        return min(self._chars, IN_MEMORY) + self._rich_bytes

    def fail(self, error: ExecutionError) -> None:
        """Add the exception that ended the execution."""
        self.error = error
        text = error.traceback or f"{error.name}: {error.message}"
        self._write(("" if self.transcript.ends_line else "\n") + text + "\n")

    def clear(self) -> None:
        """Forget what was shown so far (`clear_output`); the transcript keeps it."""
        self.outputs.clear()
        self._displays.clear()
        self._chars = self._rich_bytes = self._rich_count = 0

    def discard(self) -> None:
        """Free all memory; the output is no longer needed."""
        self.clear()
        self.transcript.discard()

    def note(self, text: str) -> None:
        """Add a note to the output, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _append(self, name: StreamName, text: str) -> None:
        last = self.outputs[-1] if self.outputs else None
        if isinstance(last, StreamText) and last.name == name and len(last.text) < _PIECE:
            self.outputs[-1] = StreamText(name=name, text=last.text + text)
        else:
            self.outputs.append(StreamText(name=name, text=text))

    def _write_rich(self, output: RichOutput) -> None:
        if output.image:
            image = output.image
            self._write(f"[{image.mime}, {image.width}x{image.height}]\n")
        elif output.text:
            self._write(output.text + "\n")
        self._tell(output)

    def _write(self, text: str) -> None:
        self.transcript.write(text)
        if self.transcript.cut:
            self.note(self.transcript.cut)

    def _tell(self, output: OutputPart) -> None:
        if self._on_output is not None:
            self._on_output(output)


def _image_of(data: dict[str, str]) -> Image | None:
    for mime in ("image/png", "image/jpeg", "image/gif", "image/webp"):
        if mime in data and (raw := decode_base64(data[mime])) is not None:
            return read_image(raw)
    return None


class Transcript:
    """Everything that an execution printed, append-only. Long output is in a file.

    The file is in a folder that no agent can reach.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head = bytearray()
        self._tail = bytearray()
        self._file: int | None = None
        self._spilled = False
        self._closed = False
        self._discarded = False
        self._lost_from: int | None = None
        """The offset from which the text is lost, because writing to the file failed."""
        self._loss = ""
        """Why writing failed."""
        self.length = 0
        """Bytes written, kept or not."""

    @property
    def cut(self) -> str:
        """Why a part of the text was dropped; empty if all of it is kept."""
        if self._loss:
            return f"From byte {self._lost_from:,} on, output is not kept: {self._loss}."
        if self.length > ON_DISK:
            return f"More than {ON_DISK >> 20} MiB was printed; the rest is not kept."
        return ""

    @property
    def ends_line(self) -> bool:
        """Whether more text would start on a new line."""
        last = self._tail or self._head
        return not last or last.endswith(b"\n")

    def write(self, text: str) -> None:
        """Append text."""
        if self._discarded:
            return
        data = text.encode(errors="replace")
        kept = data[: max(0, ON_DISK - self.length)]
        before = self.length
        self.length += len(data)
        if before < SHOWN:
            self._head += data[: SHOWN - before]
        if self.length > SHOWN:
            self._keep(kept, before)
            self._tail += data[-_TAIL:]
            del self._tail[:-_TAIL]

    def shown(self, result_id: str) -> str:
        """The text as an agent sees it: tidy, and with a mark where text is left out."""
        if self.length <= SHOWN:
            return tidy(self._head.decode(errors="replace"))
        head = self._head[:_HEAD].decode(errors="ignore")
        tail = self._tail.decode(errors="ignore")
        mark = (
            f"\n[... {self.length - _HEAD - len(self._tail):,} bytes left out; "
            f"read_output(result_id={result_id!r}, offset={_HEAD}) reads on from here ...]\n"
        )
        return tidy(head) + mark + tidy(tail)

    def read(self, offset: int, length: int) -> str:
        """A part of the text by byte offset; incomplete characters at its ends are dropped."""
        if not self._spilled:
            return self._head[offset : offset + length].decode(errors="ignore")
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(length).decode(errors="ignore")

    def close(self) -> None:
        """Close the file's descriptor; the text stays readable and can still grow."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def on_disk(self) -> int:
        """Bytes in the file."""
        if self._lost_from is not None:
            return self._lost_from
        return min(self.length, ON_DISK) if self._spilled else 0

    def discard(self) -> None:
        """Remove the file. Later output is not kept."""
        self.close()
        self._discarded = True
        if self._spilled:
            self._path.unlink(missing_ok=True)

    def _keep(self, data: bytes, before: int) -> None:
        """Write to the file. A failure loses text but does not stop the execution."""
        if self._lost_from is not None:
            return
        try:
            self._spill(data, before)
        except OSError as error:
            self._loss = error.strerror or str(error)
            self._lost_from = self._path.stat().st_size if self._spilled else 0
            logger.warning("the rest of an output is not kept: %s", error)

    def _spill(self, data: bytes, before: int) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, 0o600)
        if not self._spilled:
            self._spilled = True
            data = bytes(self._head[:before]) + data
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        if self._closed:
            self._release()  # late output is rare, so the file is opened again for each piece


def tidy(text: str) -> str:
    """Text without terminal codes, and with only the last state of each overwritten line."""
    text = _TERMINAL_CODES.sub("", text).replace("\r\n", "\n").replace("\0", "")
    if "\r" in text:
        lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
        text = "\n".join(lines)
    return text
