"""Kill controllers of rented machines, many times: every rental must end.

    python benchmarks/campaign_rented.py                 # 10 rounds each, writes results/rented.md
    python benchmarks/campaign_rented.py --rounds 3 --dry
    python benchmarks/campaign_rented.py --contract      # every check of the contract, on both

This uses the loopback stand-ins for Modal (with the real SDK) and RunPod (with a real SSH server).
Half of the rounds kill the controller at a random moment of a start; the others kill one whose
machine is running. The campaign measures the time from the kill until the rental ends; the bar is
the lease plus ten seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table
from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract
from tests.providers.test_runpod_contract import DEVIATIONS
from tests.support.modal_cloud import ModalCloud
from tests.support.runpod_cloud import RunPodCloud

LEASE = 5.0
LATEST = 4.0
"""Seconds after a controller's start after which its machine is running, on an idle computer."""
_START = """
import sys
from seer._sync import run_sync
from seer.providers import MachineSpec, get_provider
run_sync(get_provider(sys.argv[1]).start(MachineSpec(lease=float(sys.argv[2]))))
print("runs", flush=True)
sys.stdin.read()
"""


def round_of(cloud: ModalCloud | RunPodCloud, provider: str, moment: float | None) -> float:
    """Kill one controller; return the seconds until nothing is rented."""
    with tempfile.TemporaryDirectory() as state:
        controller = subprocess.Popen(
            [sys.executable, "-c", _START, provider, str(LEASE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **cloud.environment, "XDG_STATE_HOME": state},
        )
        assert controller.stdout is not None
        if moment is None:
            if controller.stdout.readline() != "runs\n":
                raise AssertionError("the machine did not start")
        else:
            time.sleep(moment)
        controller.kill()
        killed = time.monotonic()
        controller.wait()
        # A start that was killed before it reached the vendor may still arrive there.
        quiet_since = None
        while True:
            now = time.monotonic()
            if cloud.running:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since > 1.0:
                return quiet_since - killed
            if now - killed > LEASE + 30:
                raise AssertionError(f"{provider}: still rented {now - killed:.0f} s later")
            time.sleep(0.02)


def check_all(cloud: ModalCloud | RunPodCloud, provider: str) -> list[str]:
    """Run every check of the contract on a provider; return a row of the table."""
    os.environ.update(cloud.environment)
    deviations = DEVIATIONS if provider == "runpod" else {}
    contract = ProviderContract(
        get_provider(provider),
        spec=MachineSpec(start_timeout=60.0),
        deviations=deviations,
        large=24 << 20,
    )
    failed: list[str] = []
    for name in ProviderContract.names():
        try:
            contract.run(name)
        except Exception as error:
            failed.append(name)
            print(f"{provider}: {name}: {type(error).__name__}: {error}", flush=True)
    contract.close()
    count = len(ProviderContract.names())
    kept = count - len(failed) - len(deviations)
    return [provider, f"{kept} of {count}", str(len(deviations)), ", ".join(failed) or "none"]


def main() -> None:
    """Run the rounds, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="write no result")
    parser.add_argument("--contract", action="store_true", help="check the contract instead")
    options = parser.parse_args()
    if options.contract:
        checked: list[list[str]] = []
        for provider, kind in (("modal", ModalCloud), ("runpod", RunPodCloud)):
            with kind() as cloud:
                checked.append(check_all(cloud, provider))
        text = table(["provider", "checks kept", "deviations", "failed"], checked)
        print(text)
        if not options.dry:
            page = header("The contract on rented machines", {}, machine()) + "\n" + text
            (RESULTS / "rented-contract.md").write_text(page)
        return
    chance = random.Random(options.seed)
    rows: list[list[str]] = []
    where = machine()
    for provider, kind in (("modal", ModalCloud), ("runpod", RunPodCloud)):
        with kind() as cloud:
            for name in ("while it runs", "during its start"):
                taken = [
                    round_of(
                        cloud,
                        provider,
                        None if name == "while it runs" else chance.uniform(0.3, LATEST),
                    )
                    for _ in range(options.rounds)
                ]
                good = sum(seconds <= LEASE + 10 for seconds in taken)
                rows.append([provider, name, f"{good} of {len(taken)}", f"{max(taken):.1f} s"])
                print(rows[-1], flush=True)
    text = table(["provider", "controller killed", "released in time", "slowest"], rows)
    print(text)
    if not options.dry:
        intro = (
            f"Controllers killed with SIGKILL; lease {LEASE:g} s, bar {LEASE + 10:g} s. "
            f"Against the loopback stand-ins."
        )
        (RESULTS / "rented.md").write_text(
            header("Rented machines whose controllers are killed", {}, where)
            + "\n"
            + intro
            + "\n\n"
            + text
        )


if __name__ == "__main__":
    main()
