"""The `ssh` provider: machines on hosts that you can log in to."""

import asyncio
import dataclasses
import shlex

from seer.errors import ConfigError
from seer.providers._spec import MachineSpec
from seer.providers.local._record import known_fields
from seer.providers.remote.controller._host import RemoteHost
from seer.providers.remote.controller._known_hosts import recall, remember
from seer.providers.remote.controller._provider import RemoteProvider
from seer.providers.ssh._link import SshLink
from seer.providers.ssh._options import SshOptions, read_options

__all__ = ["SshOptions", "SshProvider"]


class SshProvider(RemoteProvider):
    """Machines on hosts that you can log in to."""

    name = "ssh"

    def __init__(self) -> None:
        self._hosts: dict[SshOptions, RemoteHost] = {}

    def unavailable(self) -> str | None:
        """Why it cannot be used here: no host is named."""
        try:
            read_options(None)
        except ConfigError as error:
            return error.reason
        return None

    @property
    def hosts(self) -> tuple[RemoteHost, ...]:
        """The hosts used so far."""
        return tuple(self._hosts.values())

    async def aclose(self) -> None:
        """Close the connections to all hosts, including those of machines in use."""
        for host in self._hosts.values():
            await host.link.close()

    async def _acquire(self, spec: MachineSpec) -> RemoteHost:
        options = read_options(spec.options)
        return await self._host(options)

    async def _host(self, options: SshOptions) -> RemoteHost:
        host = self._hosts.get(options)
        if host is None:
            host = RemoteHost(
                SshLink(options),
                provider=self.name,
                place=place_of(options),
                root=options.root,
                python=options.python,
                price=options.price_per_hour / 3600 or None,
                share_gpus=options.share_gpus,
                launcher=shlex.split(options.launcher),
                environment={"SEER_MODEL_STORE": options.models} if options.models else {},
            )
            self._hosts[options] = host
            fields = dataclasses.asdict(options)
            await asyncio.to_thread(remember, self.name, host.place, fields)
        return host

    async def _host_at(self, place: str) -> RemoteHost | None:
        options = (await self._known()).get(place)
        return await self._host(options if options is not None else options_at(place))

    async def _places(self) -> list[str]:
        return list(await self._known())

    async def _known(self) -> dict[str, SshOptions]:
        known = await asyncio.to_thread(recall, self.name)
        found = {
            place: SshOptions(**known_fields(SshOptions, fields)) for place, fields in known.items()
        }
        if self.unavailable() is None:
            # A host that the environment names is known even before its first use.
            options = read_options(None)
            found[place_of(options)] = options
        return found


def options_at(place: str) -> SshOptions:
    """Options for a place that has not been used yet, from its name alone."""
    user, _, rest = place.rpartition("@")
    host, _, port = rest.partition(":")
    return read_options({"host": host, "user": user, "port": int(port) if port.isdigit() else 0})


def place_of(options: SshOptions) -> str:
    """The part after the `@` in the ids of this host's machines."""
    place = f"{options.user}@{options.host}" if options.user else options.host
    return f"{place}:{options.port}" if options.port else place
