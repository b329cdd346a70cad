"""The cost of a call through the relay to a remote machine, against a plain SSH port forward.

    python benchmarks/bench_relay.py                      # writes results/relay.md
    python benchmarks/bench_relay.py --rounds 3 --dry     # a quick look

The ways connect over SSH to one OpenSSH server on loopback, and to the same gate. `relay` is what
users get: it survives cuts and goes through the machine's jail. `forward` forwards the gate's
socket over the same SSH connection with the same library, without Seer's own layers. `ssh -L` is
OpenSSH's own client, and `direct` uses no SSH; both are for orientation. The caller is a process of
its own. Rounds take turns, so that a busy moment affects all ways.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, versions
from seer._sync import run_sync
from seer.environment import SandboxConfig, ScopedSandbox
from seer.providers import get_provider
from tests.support.sshd import SshServer

MOST = 1.5
"""The bar: a small call through the relay, in calls through a plain forward."""
INTERFACE = '''
import numpy as np

DATA = np.arange(2_000_000, dtype=np.float32)


@expose
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@expose
def data() -> np.ndarray:
    """8 MB."""
    return DATA
'''
CALLER = """
import json, sys, time
from seer.rpc.client import connect
gate = connect("tools", sys.argv[1])
for line in sys.stdin:
    kind, count = line.split()
    times = []
    for number in range(int(count)):
        began = time.perf_counter()
        if kind == "small":
            assert gate.call("add", (number, 1)) == number + 1
        else:
            assert gate.call("data").shape == (2_000_000,)
        times.append(time.perf_counter() - began)
    print(json.dumps(times), flush=True)
"""


class Caller:
    """A process that calls through one address."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CALLER, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time(self, kind: str, count: int) -> list[float]:
        """Make calls, and return the seconds of each."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(f"{kind} {count}\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def measure(rounds: int, calls: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each call: way -> kind -> values."""
    with tempfile.TemporaryDirectory(prefix="seer-relay-") as name, SshServer() as server:
        folder = Path(name)
        (folder / "interface.py").write_text(INTERFACE)
        config = SandboxConfig(
            gpu=None,
            provider="ssh",
            provider_options=server.options(),
            python_packages=["numpy"],
        )
        with ScopedSandbox(config) as scoped:
            scoped.serve(folder / "interface.py", name="tools")
            served: Any = scoped._served["tools"]  # pyright: ignore[reportPrivateUsage]
            inside = {
                way: f"{served.folder}/{way}.sock" for way in ("forward", "openssh", "direct")
            }
            for way, path in inside.items():
                run_sync(served.control.add_caller(way, path))
            machine_folder = server.root / "state/seer/machines" / scoped.sandbox_id.split("@")[0]
            there = {
                way: machine_folder / "run" / Path(path).relative_to(scoped.machine.layout.run)
                for way, path in inside.items()
            }
            provider: Any = get_provider("ssh")
            link = next(iter(provider._hosts.values())).link
            connection = run_sync(link.connect())
            forwarded = run_sync(
                connection.forward_local_path(str(folder / "forward"), str(there["forward"]))
            )
            openssh = subprocess.Popen(
                [
                    *("ssh", "-F", str(server.folder / "ssh_config"), "-N"),
                    *("-L", f"{folder}/openssh:{there['openssh']}", "testhost"),
                ]
            )
            _wait_for(folder / "openssh")
            relayed = run_sync(served.open_caller("bench"))
            ways = {
                "relay": Caller(relayed.address),
                "forward": Caller(f"frames:path:{folder}/forward"),
                "ssh -L": Caller(f"frames:path:{folder}/openssh"),
                "direct": Caller(f"frames:path:{there['direct']}"),
            }
            try:
                return _rounds(ways, rounds, calls)
            finally:
                for caller in ways.values():
                    caller.close()
                openssh.terminate()
                openssh.wait()
                run_sync(_close(forwarded))


async def _close(listener: Any) -> None:
    listener.close()
    await listener.wait_closed()


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was not made")
        time.sleep(0.05)


def _rounds(ways: dict[str, Caller], rounds: int, calls: int) -> dict[str, dict[str, list[float]]]:
    times: dict[str, dict[str, list[float]]] = {way: {"small": [], "data": []} for way in ways}
    for caller in ways.values():
        caller.time("small", 50)
    for number in range(rounds):
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for way in order:
            times[way]["small"].append(median(ways[way].time("small", calls)))
            times[way]["data"].append(median(ways[way].time("data", 3)))
    return times


def main() -> int:
    """Measure and print; without `--dry`, write the result page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    where = machine()
    times = measure(arguments.rounds, arguments.calls)
    rows = [
        [way, *(f"{median(found[kind]) * 1000:.2f} ms" for kind in ("small", "data"))]
        for way, found in times.items()
    ]
    ratios = [
        relay / forward
        for relay, forward in zip(times["relay"]["small"], times["forward"]["small"], strict=True)
    ]
    ratio = median(ratios)
    page = "\n".join(
        [
            header(
                "Calls to a machine elsewhere", versions(Path(sys.executable), ["asyncssh"]), where
            ),
            table(["way", "small call", "8 MB array"], rows),
            "",
            f"A small call through the relay takes **{ratio:.2f}×** one through a plain forward "
            f"(median of {len(ratios)} rounds, {min(ratios):.2f} to {max(ratios):.2f}); "
            f"the bar is {MOST:g}×.",
            "",
        ]
    )
    print(page)
    if not arguments.dry:
        (RESULTS / "relay.md").write_text(page)
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
