"""The result of an execution: plain, frozen data, the same for every kind of session."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from seer.execution.kernel._images import Image

StreamName = Literal["stdout", "stderr"]
Status = Literal["queued", "running", "ok", "error", "interrupted", "timeout", "died"]


@dataclass(frozen=True, kw_only=True)
class StreamText:
    """A piece of what was printed."""

    name: StreamName
    text: str


@dataclass(frozen=True, kw_only=True)
class RichOutput:
    """One displayed object, in all its forms."""

    data: Mapping[str, str]
    """MIME type -> text; binary forms are base64, JSON forms are JSON."""
    is_result: bool = False
    """Whether it is the value of the last expression, and not displayed by the code."""
    image: Image | None = None
    """Its image, scaled down if it was large."""

    @property
    def text(self) -> str:
        """Its plain text; empty if it has none."""
        return self.data.get("text/markdown") or self.data.get("text/plain") or ""


Output = StreamText | RichOutput


@dataclass(frozen=True, kw_only=True)
class ExecutionError:
    """The exception that ended the execution, or another failure."""

    name: str
    """The exception's class, or `KernelDied`, `ShellDied`, `CommandFailed`."""
    message: str
    traceback: str = ""
    """Readable text without terminal colours."""


@dataclass(frozen=True, kw_only=True)
class ExecutionResult:
    """The result of an execution, or its state so far."""

    result_id: str
    """Unique in the session; `Session.read_output` and `Session.result` take it."""
    status: Status
    outputs: tuple[Output, ...] = ()
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


def _is_stream(output: Output, name: StreamName) -> bool:
    return isinstance(output, StreamText) and output.name == name
