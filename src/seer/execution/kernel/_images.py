"""Images from a kernel, recognized by their first bytes. The controller never decodes them."""

import base64
import binascii
from dataclasses import dataclass
from typing import Literal

ImageMime = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]

MAX_SIDE = 1568
"""Pixels; larger images are scaled down before an agent sees them."""
MAX_BYTES = 3 * 1024 * 1024


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


def read_image(data: bytes) -> Image | None:
    """The image in `data`; None if it is of a kind that agents cannot see."""
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
