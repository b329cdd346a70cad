"""A table of attempts to break out of a jail, to be run inside one. Standard library only.

Each attempt is a function that tries for real and gives evidence when it succeeds. The same table
is run over every jail backend, over sessions, and printed as the table of the security page.

    with plant(uid=..., ...) as targets:        # on the host
        ...                                     # copy files() and the facts into the jail
        python -c "import escapes, sys; escapes.main(sys.argv[1:])" facts.json
        assert not targets.damage()
"""

from pathlib import Path

from . import _files, _kernel, _network, _processes, _resources, _session
from ._attempt import ATTEMPTS, Attempt, Facts, Group, Setting
from ._host import Targets, plant
from ._run import Outcome, main, run

__all__ = [
    "ATTEMPTS",
    "SETTINGS",
    "Attempt",
    "Facts",
    "Group",
    "Outcome",
    "Setting",
    "Targets",
    "files",
    "jail_attempts",
    "main",
    "plant",
    "run",
    "table",
]

SETTINGS: tuple[Setting, ...] = (
    "bubblewrap-root",
    "bubblewrap-user",
    "landlock-root",
    "landlock-user",
)

# Importing them registers their attempts.
_GROUPS = {
    "files": _files,
    "processes": _processes,
    "network": _network,
    "kernel": _kernel,
    "resources": _resources,
    "session": _session,
}


def files() -> dict[str, bytes]:
    """This package as files to copy into a jail, by relative path; import it there as `escapes`."""
    folder = Path(__file__).parent
    return {f"escapes/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}


def jail_attempts() -> list[Attempt]:
    """The attempts that make sense in a jail without a session in it, and leave it alive."""
    return [item for item in ATTEMPTS.values() if item.group != "session" and not item.fatal]


def table() -> str:
    """The attempts as the Markdown table of the security page."""
    lines = [
        "| | An agent tries to | probe | bubblewrap | landlock, by root | landlock, by a user |",
        "|---|---|---|---|---|---|",
    ]
    order = list(_GROUPS)
    ordered = sorted(ATTEMPTS.values(), key=lambda item: order.index(item.group))
    for number, item in enumerate(ordered, 1):
        cells = [
            "**possible**" if setting in item.weak else ("stopped*" if item.machine else "stopped")
            for setting in ("bubblewrap-user", "landlock-root", "landlock-user")
        ]
        lines.append(f"| {number} | {item.goal} | `{item.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
