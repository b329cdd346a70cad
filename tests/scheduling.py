"""Which tests one worker runs together: those that share a server, a browser, a model, a cluster.

Those of the group `rented` share a user: containers of stand-in clouds have no users of their own,
and where one of them uses up its processes, the others could start none.

`--dist loadgroup` is meant for that; the ids by which pytest-xdist 3.8 marks a group are no longer
heeded by pytest 9, so this module finds the groups by the content of the files.
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

_ROOT = Path(__file__).parents[1]
_NAMED = re.compile(r"xdist_group\(\"([^\"]+)\"\)")
_OF_A_FILE = re.compile(r"scope=\"(module|class)\"")
_OF_A_FOLDER = re.compile(r"scope=\"session\"")


@cache
def group_of(file: str) -> str | None:
    """The group of a test file, by the content of the file and of the conftest beside it."""
    path = _ROOT / file
    beside = path.with_name("conftest.py")
    own = path.read_text(encoding="utf-8")
    shared = beside.read_text(encoding="utf-8") if beside.exists() else ""
    if named := _NAMED.search(own + shared):
        return named[1]
    if _OF_A_FOLDER.search(shared):
        return path.parent.name
    return file if _OF_A_FILE.search(own + shared) else None


class Groups(LoadScopeScheduling):
    """Gives a worker a group as a whole, large ones first; single tests fill the gaps."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0]) or nodeid
