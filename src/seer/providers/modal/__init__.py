"""Modal, through its SDK. No other module outside the tests imports the SDK.

_options.py    options that only Modal has _errors.py     the SDK's errors as Seer's _prices.py
what its machines cost _sandboxes.py  creates, finds and lists its sandboxes, with the image that a
spec asks for _link.py       runs commands in a sandbox, and opens streams over a command's input
and output _provider.py   the provider, its hosts, and the small machine that prepares what they
need
"""

from seer.providers.modal._provider import ModalOptions, ModalProvider

__all__ = ["ModalOptions", "ModalProvider"]
