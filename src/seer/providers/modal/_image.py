"""The image that a spec asks for: Debian with a Python, and what the spec names on top.

Modal keeps every layer, so that the same wishes are built once. The interpreter and git come with
it; a spec's own Python packages are prepared on the machine's storage, like everywhere.
"""

import sys

import modal

from seer.providers._spec import MachineSpec
from seer.providers.modal._options import ModalOptions

_TOOLS = ("git",)
"""What preparing needs beside Python."""


def image_for(spec: MachineSpec, options: ModalOptions) -> modal.Image:
    """Describe the image; nothing is built before a sandbox needs it."""
    version = spec.python_version or f"{sys.version_info.major}.{sys.version_info.minor}"
    if options.image is not None:
        base = modal.Image.from_registry(  # pyright: ignore[reportUnknownMemberType]
            options.image, add_python=version
        )
    else:
        base = modal.Image.debian_slim(python_version=version)
    return base.apt_install(*_TOOLS, *spec.system_packages)


async def build_log(image_id: str, *, most: int) -> str:
    """The last characters of an image's build log; empty where there is none."""
    text = ""
    async for entry in modal.Image.from_id(image_id).logs.fetch.aio():
        text = (text + entry.message)[-most:]
    return text.strip()
