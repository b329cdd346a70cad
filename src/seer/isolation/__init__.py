"""Jails: one policy, and the backends that enforce it. No other package builds jails."""

from seer.isolation._beneath import connect_beneath, open_beneath, read_bytes
from seer.isolation._choose import backends, choose
from seer.isolation._interpreter import interpreter_env, interpreter_mounts, interpreter_path
from seer.isolation._policy import BackendName, JailLimits, Mount, Policy
from seer.isolation._system import JAIL_UIDS
from seer.isolation.backends._base import Backend
from seer.isolation.network._network import script

__all__ = [
    "JAIL_UIDS",
    "Backend",
    "BackendName",
    "JailLimits",
    "Mount",
    "Policy",
    "backends",
    "choose",
    "connect_beneath",
    "interpreter_env",
    "interpreter_mounts",
    "interpreter_path",
    "open_beneath",
    "read_bytes",
    "script",
]
