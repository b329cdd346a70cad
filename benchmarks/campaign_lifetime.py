"""Kill local machines in every way, many times, and check that nothing is left.

    python benchmarks/campaign_lifetime.py                 # 400 rounds, writes results/lifetime.md
    python benchmarks/campaign_lifetime.py --rounds 20 --dry

Half of the rounds kill parts of a running machine (its controller, keeper, reaper, jail, steward,
all at once); the other half kill the controller at a random moment of a start. After each round
there must be no process, mount, socket, control group or folder of that machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table
from seer.isolation import BackendName, backends
from tests.support.local_kills import SCENES, Ground, kill_and_look

LATEST = 1.2
"""Seconds after a controller's start after which its machine is running."""


def one_round(number: int, backend: BackendName, chosen: random.Random) -> tuple[str, str | None]:
    """Play one scene in a folder of its own; return its name, and what is wrong or None."""
    during_start = number % 2 == 1
    scene = "controller" if during_start else list(SCENES)[number // 2 % len(SCENES)]
    moment = chosen.random() * LATEST if during_start else None
    name = f"controller, {moment * 1e3:.0f} ms into its start" if moment is not None else scene
    folder = Path(tempfile.mkdtemp(prefix="seer-lifetime-"))
    try:
        asyncio.run(kill_and_look(Ground(folder), scene, backend, moment=moment))
    except Exception as error:
        return name, f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return name, None


def main() -> int:
    """Play all rounds; the status says whether any of them left something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    chosen = random.Random(options.seed)
    usable: list[BackendName] = [
        name for name, reason in backends().items() if reason is None and name != "none"
    ]
    began = time.monotonic()
    played: Counter[tuple[str, str]] = Counter()
    failed: list[str] = []
    for number in range(options.rounds):
        backend = usable[number // (2 * len(SCENES)) % len(usable)]
        name, wrong = one_round(number, backend, chosen)
        kind = "controller, during a start" if "into its start" in name else name
        played[backend, kind] += 1
        if wrong is not None:
            failed.append(f"{backend}, {name}: {wrong}")
            print(failed[-1], flush=True)
    spent = time.monotonic() - began
    rows = [[backend, scene, str(count)] for (backend, scene), count in sorted(played.items())]
    page = "\n".join(
        [
            header("Killing sandboxes", {}, machine()),
            f"{options.rounds} rounds in {spent:.0f} s, seed {options.seed}."
            f" Rounds that left something: **{len(failed)}**.",
            "",
            table(["jail", "killed with SIGKILL", "rounds"], rows),
            *failed,
        ]
    )
    print(page)
    if not options.dry:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "lifetime.md").write_text(page.rstrip() + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
