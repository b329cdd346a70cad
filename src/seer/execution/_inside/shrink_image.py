"""Scale an image down. Runs in a session's machine: images from agents are decoded only there."""

import io
import sys

from PIL import Image


def main() -> None:
    """Read an image from standard input and write it as PNG, no side longer than `argv[1]`."""
    side = int(sys.argv[1])
    image = Image.open(io.BytesIO(sys.stdin.buffer.read()))
    image.thumbnail((side, side))
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image = image.convert("RGB")
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    sys.stdout.buffer.write(out.getvalue())


if __name__ == "__main__":
    main()
