"""How the pieces of a jail's network are started: the proxy outside, the forwarder inside.

The proxy and the forwarder themselves are scripts that travel in a bundle; see `script`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from seer.errors import ConfigError
from seer.isolation._backend import Launch, memory_file

Script = Literal["cgroup", "forward", "proxy", "scope"]

PROXY_PORT = 3128
"""Where the forwarder listens, on the loopback of the jail's own network."""


def script(name: Script) -> Path:
    """A self-contained, standard-library-only file to ship in a bundle.

    `proxy` runs outside a jail and `forward` inside one; `cgroup` and `scope` are modules for a
    keeper and a steward.
    """
    return Path(__file__).with_name(f"_{name}.py").resolve()


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

    Spawn it with a pipe as standard input and keep that open: the proxy ends when it closes.

    Args:
        listener: A listening Unix socket that the jail's forwarder can reach.
        label: Who asks, as the log names it.
        hosts: Names that may be reached (`*.name` for all below it); None for all public ones.
        log: A file that gets one JSON line for each refused request.
        uid: As root: the user the proxy becomes.
        names: Addresses of names that the name server is not asked for; judged like any other.

    Raises:
        ConfigError: A host pattern that can never match.
    """
    for host in hosts or ():
        bare = host.removeprefix("*.")
        if not bare or "*" in bare or "/" in bare or "@" in bare or " " in bare:
            raise ConfigError(
                "network", host, "give host names such as 'example.org' or '*.example.org'"
            )
    policy = {
        "label": label,
        "hosts": None if hosts is None else list(hosts),
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
        view={},
        own_fds=[fd],
    )


def proxy_environment(port: int = PROXY_PORT) -> dict[str, str]:
    """The variables that send programs in the jail through the forwarder."""
    url = f"http://127.0.0.1:{port}"
    local = "localhost,127.0.0.1,::1"
    values = {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": local}
    return {**values, **{key.upper(): value for key, value in values.items()}}
