"""A GPU of this host can be used from inside a machine."""

import subprocess

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


_USER = """
import ctypes as c, sys
cuda = c.CDLL("libcuda.so.1")
def do(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code: sys.exit(f"{name}: {code}")
context, memory, size = c.c_void_p(), c.c_uint64(), 2 << 30
do("cuInit", 0)
do("cuDevicePrimaryCtxRetain", c.byref(context), 0)
do("cuCtxSetCurrent", context)
do("cuMemAlloc_v2", c.byref(memory), c.c_size_t(size))
do("cuMemsetD32_v2", memory, c.c_uint(0x1234567), c.c_size_t(size // 4))
do("cuCtxSynchronize")
print("ready", flush=True)
sys.stdin.readline()
last = c.c_uint()
do("cuMemcpyDtoH_v2", c.byref(last), c.c_uint64(memory.value + size - 4), c.c_size_t(4))
print(hex(last.value), flush=True)
"""
"""Fills GPU memory, and reads the end of it when it gets a line."""


def _used() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, check=True).stdout.split()[0])


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_a_paused_machine_frees_its_gpu_and_has_its_memory_again_later(
    backend: BackendName,
) -> None:
    before = _used()
    spec = MachineSpec(isolation=backend, gpu=devices()[0].name, gpu_count=1)
    machine = await get_provider("local").start(spec)
    try:
        process = await machine.spawn([machine.layout.python, "-c", _USER], stdin=True)
        output = process.output()
        assert await anext(output) == ("stdout", b"ready\n")
        assert _used() - before > 2000
        await machine.pause()
        assert _used() - before < 100
        await machine.resume()
        assert _used() - before > 2000
        await process.write(b"\n")
        assert await anext(output) == ("stdout", b"0x1234567\n")
        await process.close()
    finally:
        await machine.terminate()
