"""Copies that are killed at random under load, and scaled up and down again and again.

    python benchmarks/campaign_replicas.py     # 20 kills, 20 scalings; results/replicas-kills.md
    python benchmarks/campaign_replicas.py --kills 5 --scalings 4 --dry

Callers call without pause, each word once. Each copy notes every word in a file of its own before
it executes the call. At the end, every call must have ended once, with its result or a typed error.
No word may have been executed twice, unless its function is idempotent. While copies only start and
stop by scaling, no call may fail. If any of this does not hold, the status is 1.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table, write_results
from seer._sync import run_sync
from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import GateError
from seer.rpc.client import Gate

CALLERS = 8
COPIES = 3
INTERFACE = """
import os
import tempfile
import time

FILE = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-{time.time_ns()}.ran")


def note(word):
    fd = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{word}\\n".encode())
    os.close(fd)
    time.sleep(0.003)
    return word


@expose(stateful=False)
def work(word: str) -> str:
    return note(word)


@expose
def work_at_home(word: str) -> str:
    return note(word)


@expose(stateful=False, idempotent=True)
def may_repeat(word: str) -> str:
    return note(word)
"""
FUNCTIONS = ("work", "work_at_home", "may_repeat")
TYPED = {"ok", "CallLostError", "InterfaceRestartedError"}


class Load:
    """Callers that call without pause until `stop`."""

    def __init__(self, library: Any) -> None:
        self.ended: dict[str, str] = {}
        self.twice = 0
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self._gates = [
            Gate("tools", f"path:{run_sync(library.gate.open_caller('load')).path}")
            for _ in range(CALLERS)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(gate, function))
            for gate in self._gates
            for function in FUNCTIONS
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, gate: Gate, function: str) -> None:
        while not self._stop.is_set():
            word = f"{function}-{next(self._numbers)}"
            try:
                outcome = "ok" if gate.call(function, (word,)) == word else "wrong"
            except GateError as error:
                outcome = type(error).__name__
            self.twice += word in self.ended
            self.ended[word] = outcome

    def stop(self) -> bool:
        """Stop; False if a call has not ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        for gate in self._gates:
            gate.close()
        return not any(thread.is_alive() for thread in self._threads)


def executed(scoped: ScopedSandbox) -> Counter[str]:
    """How often each word was executed, over all copies that ever ran."""
    return Counter(scoped.exec("cat /tmp/*.ran").split())


def kill_copies(scoped: ScopedSandbox, kills: int) -> float:
    """Kill random copies, each time all are ready; return the longest time until they are again."""
    longest = 0.0
    for _ in range(kills):
        copy = random.choice(_ready(scoped))
        began = time.monotonic()
        scoped.exec(f"kill -9 {copy}")
        while True:
            ready = _ready(scoped)
            if copy not in ready and len(ready) == COPIES:
                break
            if time.monotonic() - began > 120:
                raise RuntimeError("a copy was not replaced within two minutes")
            time.sleep(0.02)
        longest = max(longest, time.monotonic() - began)
        time.sleep(random.uniform(0.2, 1.0))
    return longest


def _ready(scoped: ScopedSandbox) -> list[int]:
    return [copy.pid for copy in scoped.describe("tools").copies if copy.state == "ready"]


def judge(load: Load, ran: Counter[str], allowed: set[str]) -> tuple[list[str], Counter[str]]:
    """The violations, and how calls ended."""
    outcomes = Counter(load.ended.values())
    wrong: list[str] = []
    if load.twice:
        wrong.append(f"{load.twice} calls ended twice")
    if set(outcomes) - allowed:
        wrong.append(f"calls ended as {sorted(set(outcomes) - allowed)}")
    again = [word for word, count in ran.items() if count > 1 and not word.startswith("may_")]
    if again:
        wrong.append(f"{len(again)} words were executed twice, such as {again[0]}")
    missing = [w for w, outcome in load.ended.items() if outcome == "ok" and not ran[w]]
    if missing:
        wrong.append(f"{len(missing)} results came of words that were not executed")
    told = [w for w, o in load.ended.items() if o == "InterfaceRestartedError" and ran[w]]
    if told:
        wrong.append(f"{len(told)} words were said to be not executed, and were")
    return wrong, outcomes


def main() -> int:
    """Run the campaign, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--scalings", type=int, default=20)
    parser.add_argument("--dry", action="store_true", help="Write nothing.")
    asked = parser.parse_args()
    where = machine()
    rows: list[list[str]] = []
    wrong: list[str] = []
    data: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tools.py"
        file.write_text(INTERFACE)
        for kind in ("kills", "scalings"):
            with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
                load = Load(scoped.serve(file, replicas=COPIES))
                time.sleep(0.5)
                if kind == "kills":
                    longest = kill_copies(scoped, asked.kills)
                else:
                    longest = 0.0
                    for i in range(asked.scalings):
                        began = time.monotonic()
                        scoped.scale("tools", (1, 3, 1, 2)[i % 4])
                        longest = max(longest, time.monotonic() - began)
                        time.sleep(0.3)
                if not load.stop():
                    wrong.append("a call has not ended")
                found, outcomes = judge(
                    load, executed(scoped), TYPED if kind == "kills" else {"ok"}
                )
            wrong += [f"{kind}: {words}" for words in found]
            data[kind] = {"outcomes": outcomes, "longest": longest}
            rows.append(
                [
                    f"{getattr(asked, kind)} {kind}",
                    str(len(load.ended)),
                    *(str(outcomes[name]) for name in sorted(TYPED)),
                    f"{longest:.2f} s",
                ]
            )
    head = ["", "calls", *sorted(TYPED), "longest until all were there"]
    verdict = (
        "Not so: " + "; ".join(wrong)
        if wrong
        else (
            "Every call ended once; none was executed twice unless idempotent, and none that was"
            " said to be not executed was; scaling failed no call."
        )
    )
    text = header("Copies that end, come and go under load", {}, where)
    text += (
        f"\n{CALLERS} callers with three calls at a time each.\n\n{table(head, rows)}\n{verdict}\n"
    )
    sys.stdout.write(text)
    if not asked.dry:
        write_results("replicas-kills", text, data, folder=RESULTS)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
