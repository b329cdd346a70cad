"""How a machine ended, in the one byte that a first process leaves behind."""

CODES = {
    "terminated": 80,
    "timeout": 81,
    "idle": 82,
    "lease": 83,
    "controller is gone": 84,
    "memory limit": 85,
    "disk limit": 86,
    "first process": 87,
    "keeper was killed": 88,
}
"""Words of a reason -> exit code of the warden. Sooner ones win."""
_REASONS = {
    80: "terminated",
    81: "its timeout passed",
    82: "it was idle for too long",
    83: "its controller was silent for longer than the lease",
    84: "its controller is gone",
    85: "it was over its memory limit",
    86: "it was over its disk limit",
    87: "its first process ended",
    88: "its keeper was killed",
}


def reason_of(code: int) -> str | None:
    """The reason that an exit code stands for; None where it stands for none."""
    return _REASONS.get(code)
