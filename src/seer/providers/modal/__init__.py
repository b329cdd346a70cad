"""Modal, through its own SDK: the only importers of it outside tests.

_options.py    what only Modal understands
_errors.py     its errors as Seer's, in one place
_prices.py     what its machines cost
_image.py      the image that a spec asks for
_sandboxes.py  create, find and list its sandboxes
_link.py       the way into one: commands, and streams over a command's input and output
_prepare.py    a small machine that prepares what a machine will need
"""

from seer.providers.modal._provider import ModalOptions, ModalProvider

__all__ = ["ModalOptions", "ModalProvider"]
