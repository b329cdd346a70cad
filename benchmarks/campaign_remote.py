"""Cut connections and killed controllers over SSH, in large numbers; writes results/remote.md.

    python benchmarks/campaign_remote.py
    python benchmarks/campaign_remote.py --cuts 20 --kills 10 --dry

Cuts: callers note numbers in a served interface, while every connection to the host is broken again
and again at random moments. Kills: a controller gets `kill -9`, and the campaign measures how long
its machine survives.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, versions
from seer.environment import SandboxConfig, ScopedSandbox
from tests.support.sshd import SshServer

LEASE = 5.0
ROOM = 10.0
"""Seconds after the end of the lease within which a machine must be gone."""
INTERFACE = '''
log = []


@expose
def note(number: int) -> int:
    """Note a number."""
    log.append(number)
    return number


@expose
def read_log() -> list[int]:
    """All that was noted."""
    return log
'''
CONTROLLER = """
import sys
from seer._sync import run_sync
from seer.providers import MachineSpec, get_provider
machine = run_sync(get_provider("ssh").start(MachineSpec(lease=float(sys.argv[1]))))
run_sync(machine.exec(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"]))
print(machine.id, flush=True)
sys.stdin.read()
"""


def cuts(server: SshServer, count: int, callers: int) -> list[str]:
    """A row of figures: the calls of several callers during this many cuts."""
    with tempfile.TemporaryDirectory(prefix="seer-cuts-") as name:
        file = Path(name, "interface.py")
        file.write_text(INTERFACE)
        config = SandboxConfig(gpu=None, provider="ssh", provider_options=server.options())
        with ScopedSandbox(config) as scoped:
            library = scoped.serve(file, name="noting")
            stop = threading.Event()
            made: dict[int, list[float]] = {}

            def call(who: int) -> None:
                module = library.connect()
                times = made[who] = []
                while not stop.is_set():
                    began = time.monotonic()
                    number = who * 10**9 + len(times)
                    if module.note(number) != number:
                        raise AssertionError("a wrong answer")
                    times.append(time.monotonic() - began)

            threads = [threading.Thread(target=call, args=(who,)) for who in range(1, callers + 1)]
            for thread in threads:
                thread.start()
            pause = random.Random(7)
            for _ in range(count):
                time.sleep(pause.uniform(0.1, 0.8))
                server.cut()
            time.sleep(0.5)
            stop.set()
            for thread in threads:
                thread.join()
            log: list[int] = library.connect().read_log()
            lost = repeated = disordered = 0
            for who, times in made.items():
                own = [number for number in log if number // 10**9 == who]
                lost += len(times) - len(set(own))
                repeated += len(own) - len(set(own))
                disordered += own != sorted(own)
            every = [value for times in made.values() for value in times]
            figures = (callers, len(every), scoped.machine.cuts, lost, repeated, disordered)  # pyright: ignore[reportAttributeAccessIssue]
            return [*map(str, figures), f"{median(every) * 1000:.1f} ms", f"{max(every):.2f} s"]


def kill(server: SshServer) -> float:
    """Seconds from a controller's end to its machine's."""
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(LEASE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **server.environment()},
    )
    assert controller.stdin is not None and controller.stdout is not None
    with controller.stdin, controller.stdout:
        folder = server.root / "state/seer/machines" / controller.stdout.readline().split("@")[0]
        if not folder.is_dir():
            raise AssertionError("the machine did not start")
        controller.kill()
        began = time.monotonic()
        controller.wait()
        while folder.exists():
            if time.monotonic() > began + LEASE + 60:
                raise AssertionError("the machine is still there")
            time.sleep(0.05)
    return time.monotonic() - began


def main() -> int:
    """Run both campaigns; status 1 if a call was lost or repeated, or a machine was left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    where = machine()
    with tempfile.TemporaryDirectory(prefix="seer-state-") as state, SshServer() as server:
        os.environ["XDG_STATE_HOME"] = state
        rows = [cuts(server, arguments.cuts, callers) for callers in (1, 4)]
        ends = [kill(server) for _ in range(arguments.kills)]
    in_time = sum(end <= LEASE + ROOM for end in ends)
    head = ["callers", "calls", "cuts", "lost", "repeated", "out of order", "median", "longest"]
    page = "\n".join(
        [
            header("Cuts and kills over SSH", versions(Path(sys.executable), ["asyncssh"]), where),
            table(head, rows),
            "",
            f"A controller killed with `kill -9`: its machine was gone within the lease of "
            f"{LEASE:g} s and {ROOM:g} s more in {in_time} of {len(ends)} cases, "
            f"after {median(ends):.2f} s (median; {min(ends):.2f} to {max(ends):.2f}).",
            "",
        ]
    )
    print(page)
    if not arguments.dry:
        (RESULTS / "remote.md").write_text(page)
    clean = all(row[3:6] == ["0", "0", "0"] for row in rows) and in_time == len(ends)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
