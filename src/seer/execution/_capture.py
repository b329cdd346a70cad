"""Collects what an execution prints and displays: a part in memory, all of it in a transcript."""

from collections.abc import Callable
from pathlib import Path

from seer.execution._result import ExecutionError, Output, RichOutput, StreamName, StreamText
from seer.execution._transcript import Transcript
from seer.execution.kernel._images import Image, decode_base64, read_image

OnOutput = Callable[[Output], object]
"""Called on Seer's loop for each piece of output, while the code runs; it must not block."""

IN_MEMORY = 4 * 1024 * 1024
"""Characters of printed text that a result contains."""
RICH_BYTES = 64 * 1024 * 1024
RICH_COUNT = 200
_PIECE = 65536


class Capture:
    """The output of one execution so far. Only the loop uses it."""

    def __init__(self, result_id: str, folder: Path, on_output: OnOutput | None = None) -> None:
        self.result_id = result_id
        self.transcript = Transcript(folder / f"{result_id}.txt")
        self.outputs: list[Output] = []
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
        """Take printed text."""
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
        """Take a displayed object."""
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
        """Replace a displayed object by its new form."""
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
        """Take the exception that ended it."""
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

    def _tell(self, output: Output) -> None:
        if self._on_output is not None:
            self._on_output(output)


def _image_of(data: dict[str, str]) -> Image | None:
    for mime in ("image/png", "image/jpeg", "image/gif", "image/webp"):
        if mime in data and (raw := decode_base64(data[mime])) is not None:
            return read_image(raw)
    return None
