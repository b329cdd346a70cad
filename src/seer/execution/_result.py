"""The result of an execution: plain, frozen data, the same for every kind of session.

Images are recognized by their first bytes. The controller never decodes them.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from seer.errors import visible

StreamName = Literal["stdout", "stderr"]
Status = Literal["queued", "running", "ok", "error", "interrupted", "timeout", "died"]
ImageMime = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]

MAX_SIDE = 1568
"""Pixels; larger images are scaled down before an agent sees them."""
MAX_BYTES = 3 * 1024 * 1024
_LINE = 160
"""Characters of output in the repr of a result."""


@dataclass(frozen=True, kw_only=True)
class StreamText:
    """A piece of what was printed."""

    name: StreamName
    text: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """An encoded image."""

    mime: ImageMime
    data: bytes
    width: int
    """Zero if the header does not say."""
    height: int

    @property
    def is_large(self) -> bool:
        """Whether it should be scaled down before it is shown."""
        return max(self.width, self.height) > MAX_SIDE or len(self.data) > MAX_BYTES


@dataclass(frozen=True, kw_only=True)
class RichOutput:
    """One displayed object, in all its forms."""

    data: Mapping[str, str]
    """MIME type -> text; binary forms are base64, JSON forms are JSON."""
    is_result: bool = False
    """Whether it is the value of the last expression; False for objects that the code displays."""
    image: Image | None = None
    """Its image, scaled down if it was large."""

    @property
    def text(self) -> str:
        """Its plain text; empty if it has none."""
        return self.data.get("text/markdown") or self.data.get("text/plain") or ""


OutputPart = StreamText | RichOutput


@dataclass(frozen=True, kw_only=True)
class ExecutionError:
    """The exception that ended the execution, or another failure."""

    name: str
    """The exception's class, or `KernelDied`, `ShellDied`, `CommandFailed`."""
    message: str
    traceback: str = ""
    """Readable text without terminal colours."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ExecutionResult:
    """The result of an execution, or its state so far."""

    result_id: str
    """Unique in the session; `Session.read_output` and `Session.result` take it."""
    status: Status
    outputs: tuple[OutputPart, ...] = ()
    """Everything it printed and displayed, in order."""
    error: ExecutionError | None = None
    duration: float = 0.0
    """Seconds it has run; waiting for its turn does not count."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, such as that the kernel is a new one."""
    text: str = ""
    """All output as an agent sees it: in order, with a mark where text is left out."""
    exit_code: int | None = None
    """In a shell: the command's exit code; negative numbers are signals."""
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values that only one kind of session has, such as a notebook cell's id."""

    def __repr__(self) -> str:
        said = visible(" ".join(self.text.split()))
        shown = said if len(said) <= _LINE else f"{said[:_LINE]}... ({len(self.text)} characters)"
        about = f"{self.result_id}: {self.status}, {self.duration:.2f} s"
        return f"<ExecutionResult {about}: {shown}>" if shown else f"<ExecutionResult {about}>"

    @property
    def ok(self) -> bool:
        """Whether it ended without an error."""
        return self.status == "ok"

    @property
    def stdout(self) -> str:
        """What it printed; very long output is shortened (see `Session.read_output`)."""
        return "".join(o.text for o in self.outputs if _is_stream(o, "stdout"))

    @property
    def stderr(self) -> str:
        """What it printed to standard error."""
        return "".join(o.text for o in self.outputs if _is_stream(o, "stderr"))

    @property
    def images(self) -> tuple[Image, ...]:
        """The images it displayed, ready to be shown."""
        return tuple(o.image for o in self.outputs if isinstance(o, RichOutput) and o.image)

    @property
    def value(self) -> str:
        """The plain text of its last expression's value; empty if it has none."""
        results = [o for o in self.outputs if isinstance(o, RichOutput) and o.is_result]
        return results[-1].data.get("text/plain", "") if results else ""


def _is_stream(output: OutputPart, name: StreamName) -> bool:
    return isinstance(output, StreamText) and output.name == name


def read_image(data: bytes) -> Image | None:
    """The image in `data`; None if agents cannot see images of its format."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        return Image(mime="image/png", data=data, width=width, height=height)
    if data.startswith(b"\xff\xd8\xff"):
        width, height = _jpeg_size(data)
        return Image(mime="image/jpeg", data=data, width=width, height=height)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        return Image(mime="image/gif", data=data, width=width, height=height)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Image(mime="image/webp", data=data, width=0, height=0)
    return None


def decode_base64(text: str) -> bytes | None:
    """The bytes of a base64 string as kernels send it; None if it is not base64."""
    try:
        return base64.b64decode(text.replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return None


def _jpeg_size(data: bytes) -> tuple[int, int]:
    position = 2
    while position + 9 < len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            return int.from_bytes(data[position + 7 : position + 9], "big"), height
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return 0, 0
