"""Results of exposed functions as an agent sees them: text, images, and files for arrays."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import date, time, timedelta
from typing import Any, cast

from seer.execution import Image
from seer.execution._result import MAX_SIDE
from seer.rpc.client import Handle
from seer.tools._tool import ToolOutput

Save = Callable[[str, bytes], Awaitable[str]]
"""Keeps a file for the calling agent; takes a name and content, returns the file's place."""

Keep = Callable[[Handle], None]
"""Keeps a handle that an agent was shown."""

TEXT_LIMIT = 100_000
"""Characters of one result; more is saved as a file."""
_FEW = 64
"""An array of at most this many numbers is shown whole."""


class ValueText:
    """Turns one result into text; it saves arrays and collects images."""

    def __init__(self, name: str, save: Save, keep: Keep) -> None:
        self._name = name
        self._save = save
        self._keep = keep
        self._images: list[Image] = []
        self._files = 0

    async def result(self, value: Any) -> ToolOutput:
        """The whole result."""
        plain = await self._plain(value)
        text = plain if isinstance(plain, str) else json.dumps(plain, indent=1, ensure_ascii=False)
        # Clients that prefer the structured form would not show the images.
        structured = None if self._images else {"result": plain}
        if len(text) > TEXT_LIMIT:
            where = await self._file("json", text.encode())
            text = (
                text[: TEXT_LIMIT // 10]
                + f"\n[... {len(text):,} characters in all; the whole result is in {where} ...]"
            )
            structured = None if self._images else {"file": where}
        return ToolOutput(text=text, images=tuple(self._images), structured=structured)

    async def _plain(self, value: Any) -> Any:
        """`value` as JSON data, with descriptions instead of values that JSON cannot express."""
        if isinstance(value, float) and not math.isfinite(value):
            return json.dumps(value)  # "NaN", "Infinity", "-Infinity"
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value)
            return {str(key): await self._plain(item) for key, item in entries.items()}
        if isinstance(value, list | tuple | set | frozenset):
            items = cast("list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]", value)
            return [await self._plain(item) for item in items]
        if isinstance(value, Handle):
            return self._handle(value)
        if isinstance(value, complex):
            return [value.real, value.imag]
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, date | time):
            return value.isoformat()
        if isinstance(value, bytes | bytearray):
            where = await self._file("bin", bytes(value))
            return f"[{len(value):,} bytes, saved as {where}]"
        kind = type(value).__module__.partition(".")[0]
        if kind == "PIL":
            return self._image(value)
        if kind == "torch":
            value = value.detach().cpu().numpy()
            kind = "numpy"
        if kind == "numpy":
            return await self._array(value)
        if kind == "pandas":
            return str(value.to_string(max_rows=40))
        return str(value)

    def _handle(self, handle: Handle) -> dict[str, Any]:
        """A handle in the form that functions accept, with a description of its value."""
        self._keep(handle)
        shape = None if handle.shape is None else list(handle.shape)
        about = {"type": handle.type, "dtype": handle.dtype, "shape": shape}
        return {"$seer": "handle", "id": handle.reference(), **about}

    async def _array(self, array: Any) -> Any:
        import numpy as np

        if array.ndim == 0:
            return await self._plain(array.item())
        shape = "x".join(map(str, array.shape))
        if array.size <= _FEW and array.dtype.kind in "biuf":
            values = await self._plain(array.tolist())
            return {"dtype": str(array.dtype), "shape": list(array.shape), "values": values}
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        where = await self._file("npy", buffer.getvalue())
        summary = f"[array {array.dtype} {shape}"
        if array.dtype.kind in "biuf" and array.size:
            finite = array[np.isfinite(array)]
            if finite.size:
                summary += f", min {finite.min():.6g}, max {finite.max():.6g}"
                summary += f", mean {finite.mean(dtype='float64'):.6g}"
            if finite.size < array.size:
                summary += f", {array.size - finite.size} not finite"
            first = ", ".join(f"{x:.6g}" for x in array.ravel()[:6].tolist())
            summary += f", first {first}"
        return f"{summary}; saved as {where}]"

    def _image(self, picture: Any) -> str:
        size = f"{picture.width}x{picture.height}"
        shown = picture.copy()
        shown.thumbnail((MAX_SIDE, MAX_SIDE))
        if shown.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
            shown = shown.convert("RGB")
        buffer = io.BytesIO()
        shown.save(buffer, format="PNG")
        self._images.append(
            Image(mime="image/png", data=buffer.getvalue(), width=shown.width, height=shown.height)
        )
        return f"[image {len(self._images)}, {size}]"

    async def _file(self, suffix: str, data: bytes) -> str:
        self._files += 1
        return await self._save(f"{self._name}-{self._files}.{suffix}", data)
