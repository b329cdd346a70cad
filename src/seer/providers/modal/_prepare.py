"""Prepare what a machine will need on a small machine without a GPU, that shares its volume.

Downloads then cost little, and the machine itself can be without a network from its first moment.
The small machine is rented when something has to be run for the first time, and given back before
the machine starts, which is when Modal has the volume's new content. Folders that are only copied
wait for the machine itself: where they will lie follows from their content.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from seer.providers._base import Host
from seer.providers.remote.controller._host import digest
from seer.providers.rented._host import CACHE, RentedHost

_STORE = Path(CACHE) / "seer" / "store"


class Preparation(Host):
    """Where a machine's packages, models and repositories are prepared."""

    name = "Modal"

    def __init__(self, rent: Callable[[], Awaitable[RentedHost]]) -> None:
        """Describe it; nothing is rented before it is needed."""
        self._rent = rent
        self._renting = asyncio.Lock()
        self._rented: RentedHost | None = None
        self._waiting: dict[Path, Path] = {}

    @property
    def unpushed(self) -> list[Path]:
        """The folders that the machine has to be given."""
        return list(self._waiting.values())

    async def run(
        self,
        module: str,
        request: Mapping[str, object],
        *,
        on_message: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]:
        """Run the `main` of a module of this package there."""
        host = await self._host()
        # It may be about what was copied.
        for there, folder in list(self._waiting.items()):
            await host.push(folder)
            self._waiting.pop(there, None)
        return await host.run(module, request, on_message=on_message)

    async def push(self, folder: Path) -> Path:
        """Have a folder copied there; gives its path."""
        if self._rented is not None:
            return await self._rented.push(folder)
        there = _STORE / await asyncio.to_thread(digest, folder)
        self._waiting[there] = folder
        return there

    async def _host(self) -> RentedHost:
        async with self._renting:
            if self._rented is None:
                self._rented = await self._rent()
            return self._rented

    async def release(self) -> None:
        """Give the small machine back, if there is one; what it has prepared stays."""
        rented, self._rented = self._rented, None
        if rented is not None:
            await rented.leave()
