"""Folders of stand-in hosts, which end with the test run even if it is killed.

They use Seer's own remover, because their files may belong to other users or be nested too deeply.
"""

from seer._transient import remove_at_end

__all__ = ["remove_at_end"]
