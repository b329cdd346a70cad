"""Jails: one policy, and backends that keep it. The only place that builds a boundary."""

from seer.isolation._backend import Backend, Launch, Need
from seer.isolation._choose import backends, choose
from seer.isolation._policy import BackendName, JailNetwork, Limits, Mount, Policy

__all__ = [
    "Backend",
    "BackendName",
    "JailNetwork",
    "Launch",
    "Limits",
    "Mount",
    "Need",
    "Policy",
    "backends",
    "choose",
]
