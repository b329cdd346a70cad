"""Jails: one policy, and backends that keep it. The only place that builds a boundary."""

from seer.isolation._beneath import (
    connect_beneath,
    make_dirs,
    open_beneath,
    read_bytes,
    write_bytes,
)
from seer.isolation._choose import backends, choose
from seer.isolation._interpreter import interpreter_env, interpreter_mounts, interpreter_path
from seer.isolation._ownership import chown_tree
from seer.isolation._policy import BackendName, JailNetwork, Limits, Mount, Policy, Users
from seer.isolation._system import JAIL_UIDS, USERS_AGENT, make_etc
from seer.isolation._users import MACHINE_UIDS, take_user
from seer.isolation.backends._base import Backend, Launch, Need
from seer.isolation.backends._container import is_rented
from seer.isolation.network._network import (
    PROXY_PORT,
    Script,
    host_pattern,
    proxy_environment,
    proxy_launch,
    script,
)

__all__ = [
    "JAIL_UIDS",
    "MACHINE_UIDS",
    "PROXY_PORT",
    "USERS_AGENT",
    "Backend",
    "BackendName",
    "JailNetwork",
    "Launch",
    "Limits",
    "Mount",
    "Need",
    "Policy",
    "Script",
    "Users",
    "backends",
    "choose",
    "chown_tree",
    "connect_beneath",
    "host_pattern",
    "interpreter_env",
    "interpreter_mounts",
    "interpreter_path",
    "is_rented",
    "make_dirs",
    "make_etc",
    "open_beneath",
    "proxy_environment",
    "proxy_launch",
    "read_bytes",
    "script",
    "take_user",
    "write_bytes",
]
