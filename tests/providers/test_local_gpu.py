"""A GPU of this host can be used from inside a machine."""

import pytest

from seer.isolation import BackendName
from seer.providers import MachineSpec, get_provider
from seer.providers._gpus import devices

pytestmark = [pytest.mark.full, pytest.mark.gpu]


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_a_machine_sees_the_gpus_it_asked_for(backend: BackendName) -> None:
    names = [device.name for device in devices()]
    spec = MachineSpec(isolation=backend, gpu=names[0], gpu_count=1)
    machine = await get_provider("local").start(spec)
    try:
        result = await machine.exec(["nvidia-smi", "-L"], timeout=60)
        assert names[0].encode() in result.stdout, result.stderr
        result = await machine.exec(["/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES"])
        assert result.stdout == b"0\n"
    finally:
        await machine.terminate()
