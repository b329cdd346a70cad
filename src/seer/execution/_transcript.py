"""Everything that an execution printed. Long output is on disk."""

import logging
import os
import re
from pathlib import Path

logger = logging.getLogger(__name__)

SHOWN = 20_000
"""Bytes of one execution that an agent sees."""
ON_DISK = 256 * 1024 * 1024
"""Bytes of one execution that are kept."""
_HEAD, _TAIL = SHOWN * 3 // 5, SHOWN * 2 // 5

_TERMINAL_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]"
)


class Transcript:
    """Append-only text. The file is in a folder that no agent can reach."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head = bytearray()
        self._tail = bytearray()
        self._file: int | None = None
        self._spilled = False
        self._closed = False
        self._discarded = False
        self._lost_from: int | None = None
        """The offset at which the file could not be written any more."""
        self._loss = ""
        """Why it could not."""
        self.length = 0
        """Bytes written, kept or not."""

    @property
    def cut(self) -> str:
        """Why a part is not kept; empty if everything is."""
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
        """A part of it by byte offset, without incomplete characters at its ends."""
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
