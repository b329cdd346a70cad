"""Keep a program from signalling whoever started it. Self-contained, standard library only.

A steward inside a jail runs commands as its own user, so they could stop or kill it. It calls
`confine_signals` in the child, between `fork` and `exec`: one more Landlock layer, from which only
processes inside that layer can be signalled or looked into.
"""

from __future__ import annotations

import ctypes

_PR_SET_NO_NEW_PRIVS = 38
_CREATE, _RESTRICT = 444, 446
_SCOPE_SIGNAL = 0b10


def confine_signals() -> bool:
    """Confine this process and all it will start; False where the kernel cannot (before 6.12)."""
    libc = ctypes.CDLL(None, use_errno=True)
    # handled file-system and network rights: none; only the scope.
    words = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_SIGNAL)
    ruleset = libc.syscall(ctypes.c_long(_CREATE), ctypes.byref(words), ctypes.c_size_t(24), 0)
    if ruleset < 0:
        return False
    one, zero = ctypes.c_ulong(1), ctypes.c_ulong(0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, one, zero, zero, zero)
    restricted = libc.syscall(ctypes.c_long(_RESTRICT), ruleset, 0) == 0
    libc.close(ruleset)
    return restricted
