"""What is sent to a host is read in pieces, however large its files are."""

import asyncio
import tracemalloc
from pathlib import Path

from seer.providers.remote.controller._host import _tar, digest  # pyright: ignore[reportPrivateUsage]

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
