"""Launches the proxy of a jail's network, and finds scripts that run where Seer is not installed.

`script` has the proxy outside a jail, the forwarder inside, and two modules for machines.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from seer.errors import ConfigError
from seer.isolation.backends._base import Launch, memory_file

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")

Script = Literal["cgroup", "forward", "ownership", "proxy"]

PROXY_PORT = 3128
"""The port on which the forwarder listens, on the jail's own loopback."""


def script(name: Script) -> Path:
    """A self-contained, standard-library-only file to ship in a bundle.

    `proxy` runs outside a jail and `forward` inside one; `cgroup` and `ownership` are modules for
    a keeper and a steward.
    """
    here = Path(__file__).resolve().parent
    return (here if name in ("forward", "proxy") else here.parent) / f"_{name}.py"


def host_pattern(field: str, text: str) -> str:
    """Normalize a host name or `*.name` for the proxy's comparison.

    Args:
        field: The field's name in errors.
        text: What the user wrote.

    Raises:
        ConfigError: It matches no host, or almost every host.
    """
    pattern = text.removesuffix(".").lower()
    name = pattern.removeprefix("*.")
    if not text.isascii():
        raise ConfigError(field, text, "write an international name in its ASCII form (xn--...)")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            field,
            text,
            "is not a host name such as 'example.org' or '*.example.org' (no scheme, port or path)",
        )
    if name != pattern and ("." not in name or name.rpartition(".")[2].isdigit()):
        raise ConfigError(
            field,
            text,
            "a wildcard must be followed by a name of two or more parts: '*.example.org'",
        )
    return pattern


def proxy_launch(
    listener: int,
    *,
    label: str,
    hosts: Sequence[str] | None = None,
    log: Path | None = None,
    uid: int | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Launch:
    """Prepare the filtering proxy of one jail.

    Spawn it with a pipe as its standard input and keep the pipe open: when it closes, the proxy
    ends.

    Args:
        listener: A listening Unix socket that the jail's forwarder can reach.
        label: The jail's name in the log.
        hosts: Hosts that may be reached (see `host_pattern`); None for all public hosts.
        log: A file that gets one JSON line for each refused request.
        uid: As root: the user that the proxy becomes.
        names: Fixed addresses for names, instead of a lookup. They are checked like other
            addresses.

    Raises:
        ConfigError: A host is neither a name nor `*.name`.
    """
    policy = {
        "label": label,
        "hosts": None if hosts is None else [host_pattern("network", host) for host in hosts],
        "log": None if log is None else str(log),
        "uid": uid,
        "names": {name: list(addresses) for name, addresses in (names or {}).items()},
    }
    fd = memory_file("seer-proxy", json.dumps(policy).encode())
    arguments = ("--fd", str(listener), "--policy-fd", str(fd))
    return Launch(
        argv=(sys.executable, "-I", str(script("proxy")), *arguments),
        env={},
        pass_fds=(listener, fd),
        own_fds=[fd],
    )


def proxy_environment() -> dict[str, str]:
    """The environment variables that make programs in the jail use the forwarder."""
    url = f"http://127.0.0.1:{PROXY_PORT}"
    local = "localhost,127.0.0.1,::1"
    values = {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": local}
    return {**values, **{key.upper(): value for key, value in values.items()}}
