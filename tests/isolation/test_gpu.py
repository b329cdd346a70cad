"""The machine's GPUs, used from inside jails."""

import subprocess
from pathlib import Path

import pytest

from seer.isolation import BackendName, Policy, choose

pytestmark = [pytest.mark.gpu, pytest.mark.full]

CODE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20) == 0
there, back = (ctypes.c_char * 4)(b"g", b"p", b"u", b"!"), (ctypes.c_char * 4)()
assert cuda.cuMemcpyHtoD_v2(memory, there, 4) == 0
assert cuda.cuMemcpyDtoH_v2(back, memory, 4) == 0
print(bytes(back).decode(), count.value)
"""


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_cuda_works_in_a_jail_that_has_the_gpu_and_only_there(name: BackendName) -> None:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU here")
    backend = choose(name)
    printed: list[str] = []
    for gpu in (True, False):
        env = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
        launch = backend.launch(Policy(gpu=gpu, env=env), ["/usr/bin/python3", "-c", CODE])
        done = subprocess.run(
            launch.argv,
            env=launch.env,
            pass_fds=launch.pass_fds,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        launch.close()
        printed.append(done.stdout)
    assert printed[0].startswith("gpu! ")
    assert printed[1] == ""
