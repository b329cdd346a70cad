"""Folders of stand-in hosts, which end with the test run even if it is killed.

They use Seer's own remover, because what they hold may belong to other users or lie too deep.
"""

from seer._transient import remove_at_end

__all__ = ["remove_at_end"]
