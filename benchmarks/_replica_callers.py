"""A process with many callers of an interface with copies, for `bench_replicas`.

It reads one request per line from standard input (a JSON object), runs it, and writes one line:
for each caller, the seconds that each of its calls took. Every caller has its own socket and its
own thread; a caller that floods has several threads on one socket.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from seer.rpc.client import Gate, connect


def main() -> None:
    """Serve requests until the input ends."""
    gates: dict[str, Gate] = {}
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        for path in (*asked["callers"], *asked.get("flood", ())):
            if path not in gates:
                gates[path] = connect("tools", f"path:{path}")
                gates[path].call(asked["function"], asked["args"])
        sys.stdout.write(json.dumps(_run(asked, gates)) + "\n")
        sys.stdout.flush()
    for gate in gates.values():
        gate.close()


def _run(asked: dict[str, Any], gates: dict[str, Gate]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in asked["callers"]]
    begin, over = threading.Barrier(len(times) + 1), threading.Event()

    def call(path: str, took: list[float]) -> None:
        gate, args = gates[path], asked["args"]
        begin.wait()
        until = time.perf_counter() + asked.get("seconds", float("inf"))
        while len(took) < asked.get("calls", 1 << 30) and time.perf_counter() < until:
            began = time.perf_counter()
            gate.call(asked["function"], args)
            took.append(time.perf_counter() - began)

    def flood(path: str) -> None:
        while not over.is_set():
            gates[path].call(asked["function"], asked["args"])

    flooding = [
        threading.Thread(target=flood, args=(path,))
        for path in asked.get("flood", ())
        for _ in range(asked["connections"])
    ]
    callers = [
        threading.Thread(target=call, args=pair)
        for pair in zip(asked["callers"], times, strict=True)
    ]
    for thread in (*flooding, *callers):
        thread.start()
    begin.wait()
    for thread in callers:
        thread.join()
    over.set()
    for thread in flooding:
        thread.join()
    return times


if __name__ == "__main__":
    main()
