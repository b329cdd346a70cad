"""Seer's costs on a Ray cluster: calls, shared weights, and how soon resources are free again.

    python benchmarks/bench_ray.py                       # writes results/ray.md
    python benchmarks/bench_ray.py --rounds 3 --dry      # a quick look

Calls: a small call of a served function on a Ray node (`gate on Ray`) and on this machine (`gate
here`), against a call of a bare Ray actor on the same cluster and a bare Ray Serve deployment over
HTTP. Every caller is a process of its own with one connection; rounds take turns. Ray Serve has its
own environment and its own Ray; a signal stops its processes while others are measured.

Weights: three sandboxes on one node map the same model and read all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, versions
from seer._sync import run_sync
from seer.environment import ModelConfig, Sandbox, SandboxConfig, ScopedSandbox
from seer.errors import SandboxLostError
from seer.organisms import base_model
from seer.providers import MachineSpec, get_provider
from tests.support.ray_cluster import RayCluster

ROOT = Path(__file__).resolve().parent.parent
MOST_OF_AN_ACTOR_CALL = 1.5
MOST_OF_A_SERVE_CALL = 1.0
NODES, CPUS = 2, 6
SERVE = ROOT / ".venv-bench-serve" / "bin" / "python"
INTERFACE = '''
@expose
def add(a: int, b: int) -> int:
    """Add."""
    return a + b
'''
_LOOP = """
for line in sys.stdin:
    times = []
    for number in range(int(line)):
        began = time.perf_counter()
        assert call(number) == number + 1
        times.append(time.perf_counter() - began)
    print(json.dumps(times), flush=True)
"""
GATE = f"""
import json, sys, time
from seer.rpc.client import connect
gate = connect("tools", sys.argv[1])
call = lambda number: gate.call("add", (number, 1))
print("ready", flush=True)
{_LOOP}
"""
ACTOR = f"""
import json, sys, time
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
@ray.remote(num_cpus=1)
class Tools:
    def add(self, a, b):
        return a + b
tools = Tools.remote()
call = lambda number: ray.get(tools.add.remote(number, 1))
call(0)
print("ready", flush=True)
{_LOOP}
"""
SERVER = """
import sys
import ray
from ray import serve
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
@serve.deployment
class Tools:
    async def __call__(self, request):
        query = request.query_params
        return str(int(query["a"]) + int(query["b"]))
serve.run(Tools.bind())
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""
HTTP = f"""
import http.client, json, sys, time
server = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
def call(number):
    server.request("GET", f"/?a={{number}}&b=1")
    return int(server.getresponse().read())
print("ready", flush=True)
{_LOOP}
"""
LOAD = """
import mmap, os, sys, time
with open(sys.argv[1], "rb") as file:
    began = time.perf_counter()
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    total = 0
    for start in range(0, len(mapped), mmap.PAGESIZE):
        total += mapped[start]
    took = time.perf_counter() - began
    status = os.fstat(file.fileno())
print(took, len(mapped), f"{status.st_dev}:{status.st_ino}", flush=True)
sys.stdin.readline()
rollup = dict(
    (line.split(":")[0], int(line.split()[1]))
    for line in open("/proc/self/smaps_rollup") if line.endswith("kB\\n")
)
print(rollup["Rss"], rollup["Pss"], flush=True)
sys.stdin.readline()
"""
CONTROLLER = """
import sys
from seer._sync import run_sync
from seer.providers import MachineSpec, get_provider
machine = run_sync(get_provider("ray").start(MachineSpec(lease=60.0, cpus=2)))
print(machine.id, flush=True)
sys.stdin.read()
"""


class Caller:
    """A process that makes calls on request."""

    def __init__(self, python: str, code: str, *arguments: str, stop: int = 0) -> None:
        """Start it.

        Args:
            python: The interpreter.
            code: The code to run.
            arguments: The code's arguments.
            stop: A process group that runs only while this caller makes calls.
        """
        self._stop = stop
        self._process = subprocess.Popen(
            [python, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(None)

    def _say(self, line: str | None) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        if line is not None:
            stdin.write(line + "\n")
            stdin.flush()
        return stdout.readline()

    def time(self, count: int) -> list[float]:
        """Make calls, and return the seconds of each."""
        if self._stop:
            os.killpg(self._stop, signal.SIGCONT)
            self._say("50")
        times: list[float] = json.loads(self._say(str(count)))
        if self._stop:
            os.killpg(self._stop, signal.SIGSTOP)
        return times

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def measure_calls(rounds: int, calls: int) -> dict[str, list[float]]:
    """Median seconds of a small call in each round, by contestant."""
    with tempfile.TemporaryDirectory(prefix="seer-bench-") as name:
        folder = Path(name)
        (folder / "interface.py").write_text(INTERFACE)
        config = {"gpu": None, "python_packages": ["numpy"]}
        with (
            ScopedSandbox(SandboxConfig(provider="ray", **config)) as far,
            ScopedSandbox(SandboxConfig(provider="local", **config)) as near,
        ):
            addresses: dict[str, str] = {}
            for way, sandbox in (("gate on Ray", far), ("gate here", near)):
                sandbox.serve(folder / "interface.py", name="tools")
                served: Any = sandbox._served["tools"]  # pyright: ignore[reportPrivateUsage]
                addresses[way] = run_sync(served.open_caller("bench")).address
            server, port = _start_serve(folder)
            try:
                ways = {
                    "gate on Ray": Caller(sys.executable, GATE, addresses["gate on Ray"]),
                    "gate here": Caller(sys.executable, GATE, addresses["gate here"]),
                    "Ray actor": Caller(sys.executable, ACTOR),
                    "Ray Serve": Caller(sys.executable, HTTP, port, stop=server.pid),
                }
                try:
                    return _rounds(ways, rounds, calls)
                finally:
                    for caller in ways.values():
                        caller.close()
            finally:
                _end_serve(server)


def _start_serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    if not SERVE.exists():
        print("making .venv-bench-serve (minutes, once)", flush=True)
        venv.create(SERVE.parents[1], with_pip=True)
        (SERVE.parents[1] / ".gitignore").write_text("*\n")
        pins = ROOT / "benchmarks" / "requirements-serve.txt"
        subprocess.run([str(SERVE), "-m", "pip", "install", "-q", "-r", str(pins)], check=True)
    port = str(20000 + secrets.randbelow(10000))
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own |= {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    server = subprocess.Popen(
        [str(SERVE), "-c", SERVER, port],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=own,
        start_new_session=True,
    )
    assert server.stdout is not None
    while (line := server.stdout.readline()) != "ready\n":
        if not line:
            raise RuntimeError("Ray Serve did not start")
    return server, port


def _end_serve(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None and server.stdout is not None
    os.killpg(server.pid, signal.SIGCONT)
    server.stdin.close()
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    server.stdout.close()


def _rounds(ways: dict[str, Caller], rounds: int, calls: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for caller in ways.values():
        caller.time(100)
    for number in range(rounds):
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for way in order:
            times[way].append(median(ways[way].time(calls)))
    return times


def measure_weights(home: Path, count: int) -> dict[str, Any]:
    """Load one model in several sandboxes of one node, one after the other; all keep it."""
    node = run_sync(_a_node())
    config = SandboxConfig(
        provider="ray",
        provider_options={"node": node},
        gpu=None,
        models=[ModelConfig(str(base_model()))],
        network="none",
    )
    sandboxes = [Sandbox(config).start() for _ in range(count)]
    try:
        return run_sync(_load(home, sandboxes))
    finally:
        for sandbox in sandboxes:
            sandbox.terminate()


async def _a_node() -> str:
    provider: Any = get_provider("ray")
    driver = await provider._driver(os.environ["RAY_ADDRESS"])
    return (await driver.ask("nodes"))[0]["id"]


async def _load(home: Path, sandboxes: list[Sandbox]) -> dict[str, Any]:
    loads: list[dict[str, Any]] = []
    processes: list[tuple[Any, Any]] = []
    for sandbox in sandboxes:
        path = f"{sandbox.model_handles[0].path}/model.safetensors"
        if not loads:
            # Drop the file from the page cache first. It has no unwritten pages, so the kernel can.
            evict = "import os,sys; f=os.open(sys.argv[1],0); os.posix_fadvise(f,0,0,4)"
            await sandbox.machine.exec([sandbox.machine.layout.python, "-c", evict, path])
        process = await sandbox.machine.spawn(
            [sandbox.machine.layout.python, "-c", LOAD, path], stdin=True
        )
        said = process.output()
        took, size, file = (await anext(said))[1].decode().split()
        loads.append(
            {
                "seconds": float(took),
                "size": int(size),
                "file": file,
                "cached": _cached(home, file),
            }
        )
        processes.append((process, said))
    for load, (process, said) in zip(loads, processes, strict=True):
        await process.write(b"\n")
        rss, pss = (await anext(said))[1].decode().split()
        load["rss"], load["pss"] = int(rss) * 1024, int(pss) * 1024
    for process, _ in processes:
        await process.close()
    return {"loads": loads, "files": len({load["file"] for load in loads})}


def _cached(home: Path, file: str) -> int:
    """The bytes of a file on the node that are in the page cache."""
    inode = int(file.partition(":")[2])
    found = next(path for path in home.rglob("model.safetensors") if path.stat().st_ino == inode)
    done = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", str(found)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def measure_kills(rounds: int, total: float) -> list[float]:
    """Seconds from a controller's `kill -9` until Ray has its machine's resources again."""
    found: list[float] = []
    for _ in range(rounds):
        _wait_until_free(total)
        controller = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert controller.stdout is not None and controller.stdin is not None
        assert controller.stdout.readline(), "the controller did not start its machine"
        # Ray reports its resources with a short delay.
        _wait_until_free(total - 2)
        began = time.monotonic()
        controller.kill()
        controller.wait()
        _wait_until_free(total)
        found.append(time.monotonic() - began)
        controller.stdin.close()
        controller.stdout.close()
    return found


def _wait_until_free(cpus: float) -> None:
    deadline = time.monotonic() + 120
    while (free := run_sync(_free())) != cpus:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{free:g} CPUs are free, and {cpus:g} should be")
        time.sleep(0.02)


async def _free() -> float:
    provider: Any = get_provider("ray")
    driver = await provider._driver(os.environ["RAY_ADDRESS"])
    return float((await driver.ask("look"))["free"].get("CPU", 0))


def measure_lost_node(cluster: RayCluster) -> float:
    """Seconds from a node's end until a command on it fails with the right error."""

    async def run() -> float:
        spec = MachineSpec(options={"node": cluster.nodes[1].id}, lease=60.0)
        lost = await get_provider("ray").start(spec)
        running = asyncio.ensure_future(lost.exec(["sleep", "600"]))
        await lost.exec(["true"])
        began = time.monotonic()
        await asyncio.to_thread(cluster.kill_node, 1)
        try:
            await running
        except SandboxLostError:
            return time.monotonic() - began
        raise RuntimeError("a command outlived its node")

    return run_sync(run())


def _page(
    where: dict[str, str],
    times: dict[str, list[float]],
    weights: dict[str, Any],
    kills: list[float],
    lost: float,
) -> tuple[str, bool]:
    middle = {way: median(found) for way, found in times.items()}
    over_actor = middle["gate on Ray"] / middle["Ray actor"]
    over_serve = middle["gate on Ray"] / middle["Ray Serve"]
    met = over_actor <= MOST_OF_AN_ACTOR_CALL and over_serve <= MOST_OF_A_SERVE_CALL
    rows = [
        [way, f"{value * 1000:.2f} ms", f"{value / middle['Ray actor']:.2f}×"]
        for way, value in middle.items()
    ]
    loads = weights["loads"]
    size = loads[0]["size"] / 2**20
    load_rows = [
        [
            str(number + 1),
            f"{load['seconds']:.3f} s",
            f"{load['cached'] / 2**20:.0f} MiB",
            f"{load['rss'] / 2**20:.0f} MiB",
            f"{load['pss'] / 2**20:.0f} MiB",
        ]
        for number, load in enumerate(loads)
    ]
    together = sum(load["pss"] for load in loads) / 2**20
    packages = versions(Path(sys.executable), ["ray"])
    page = "\n".join(
        [
            header("Sandboxes on a Ray cluster", packages, where),
            "## A small call",
            "",
            table(["way", "median", "of a Ray actor's call"], rows),
            f"A call through the gate on a Ray node takes **{over_actor:.2f}×** a bare Ray actor's "
            f"(bar: at most {MOST_OF_AN_ACTOR_CALL}×) and {over_serve:.2f}× a bare Ray Serve call "
            f"over HTTP (bar: less than 1×).",
            "",
            f"## {len(loads)} sandboxes of one node with one model of {size:.0f} MiB",
            "",
            table(["sandbox", "load", "of it in the page cache", "RSS", "PSS"], load_rows),
            f"All of them map {'one file' if weights['files'] == 1 else 'copies'}; together they "
            f"take {together:.0f} MiB. The first load reads from the disk, the others from memory.",
            "",
            "## Ends",
            "",
            f"A controller killed with `kill -9`: its machine's CPUs were free again after "
            f"{median(kills):.2f} s ({min(kills):.2f} to {max(kills):.2f}, {len(kills)} times; "
            f"lease 60 s). A killed node: a command on it failed as `SandboxLostError` after "
            f"{lost:.2f} s.",
            "",
        ]
    )
    return page, met


def main() -> int:
    """Measure and print; without `--dry`, write the result page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    where = machine()
    with (
        tempfile.TemporaryDirectory(prefix="seer-home-") as home,
        RayCluster(nodes=NODES, cpus=CPUS, home=Path(home)) as cluster,
    ):
        os.environ.update(cluster.environment)
        try:
            times = measure_calls(arguments.rounds, arguments.calls)
            weights = measure_weights(Path(home), 3)
            kills = measure_kills(arguments.kills, NODES * CPUS)
            lost = measure_lost_node(cluster)
        finally:
            provider: Any = get_provider("ray")
            run_sync(provider.aclose())
    page, met = _page(where, times, weights, kills, lost)
    print(page)
    if not arguments.dry:
        (RESULTS / "ray.md").write_text(page.rstrip() + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
