"""The first contact with a host, and what is sent to it: read in pieces, however large it is."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterable, Callable, Sequence
from pathlib import Path

import pytest

from seer.errors import ProviderError
from seer.providers.remote.controller._host import (
    RemoteHost,
    _tar,  # pyright: ignore[reportPrivateUsage]
    digest,
)
from seer.providers.remote.controller._link import Link, Ran, Wire

SIZE = 96 << 20


def test_pushing_a_model_reads_no_shard_whole(tmp_path: Path) -> None:
    with (tmp_path / "model-00001.safetensors").open("wb") as file:
        file.truncate(SIZE)

    async def send() -> int:
        sent = 0
        async for part in _tar(tmp_path):
            sent += len(part)
        return sent

    tracemalloc.start()
    try:
        digest(tmp_path)
        sent = asyncio.run(send())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sent > SIZE
    assert peak < SIZE // 4


class _ChattyLink(Link):
    """A host whose login shell prints a message when it ends."""

    name = "chatty"

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> Ran:
        answer = b"/usr/bin/python3\t3.12.1\t1\t/home/u/.seer\n"
        return Ran(exit_code=0, stdout=answer + b"Good-bye!\n", stderr=b"")

    async def dial(
        self, path: str, *, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Wire:
        raise AssertionError("not reached")

    async def close(self) -> None:
        pass


async def test_a_login_shell_that_prints_something_is_named() -> None:
    host = RemoteHost(_ChattyLink(), provider="ssh", place="chatty")
    with pytest.raises(ProviderError, match="ended with 'Good-bye!'.* must not print anything"):
        await host.machines()
