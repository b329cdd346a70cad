"""The client process of every contestant: it calls, checks the answers and measures the time.

Run as `python _probe.py MODULE`. It reads commands as JSON lines from standard input, and writes
answers as JSON lines to standard output; the output of libraries goes to standard error. It needs
only the standard library (and numpy for arrays), so that it runs in any jail.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import TextIO

    from benchmarks.gate._adapter import Client

now = time.perf_counter_ns
_RETRY_S = 0.001
_SAMPLES_PER_CLIENT = 200
_KEPT = 6


def quantiles(samples: list[int]) -> dict[str, float]:
    """Median, 99th percentile and mean in microseconds, and the count."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return {
        "p50": ordered[last // 2] / 1e3,
        "p99": ordered[int(last * 0.99)] / 1e3,
        "mean": sum(ordered) / len(ordered) / 1e3,
        "count": len(ordered),
    }


def connect(module: ModuleType, address: str, timeout: float) -> Client:
    """Connect and get one answer; try again until `timeout` seconds have passed."""
    end = time.monotonic() + timeout
    while True:
        client: Client | None = None
        try:
            client = module.connect(address)
            if client is not None and client.small(1) == 2:
                return client
            raise AssertionError("small(1) is not 2")
        except AssertionError:
            raise
        except Exception:
            # Each library has its own error for "nobody listens yet"; only the deadline counts.
            if client is not None:
                client.close()
            if time.monotonic() > end:
                raise
            time.sleep(_RETRY_S)


def _small(client: Client) -> Callable[[int], None]:
    call = client.small

    def one(i: int) -> None:
        if call(i) != i + 1:
            raise AssertionError(f"small({i}) gave a wrong answer")

    return one


def _floats(client: Client) -> Callable[[int], None]:
    def one(_: int) -> None:
        values = client.floats(4096)
        if len(values) != 4096 or abs(values[4095] - 409.55) > 1e-9:
            raise AssertionError("floats(4096) gave a wrong answer")

    return one


def _take(client: Client) -> Callable[[int], None]:
    values = [i * 0.1 + 0.05 for i in range(4096)]

    def one(i: int) -> None:
        values[-1] = float(i)
        if client.take(values) != float(i):
            raise AssertionError("take() gave a wrong answer")

    return one


def _fail(client: Client) -> Callable[[int], None]:
    def one(i: int) -> None:
        try:
            client.fail(f"no value {i}")
        except AssertionError:
            raise
        except Exception as error:
            if f"no value {i}" not in str(error):
                raise AssertionError(f"fail() lost its message: {error!r}") from error
        else:
            raise AssertionError("fail() did not raise")

    return one


_CALLS = {"small": _small, "floats": _floats, "take": _take, "fail": _fail}


def run_calls(client: Client, command: dict[str, Any]) -> dict[str, float]:
    """Call one function again and again for `seconds`, after a warm-up of a tenth of it."""
    one = _CALLS[command["work"]](client)
    budget = int(command["seconds"] * 1e9)
    for length, measured in ((budget // 10, False), (budget, True)):
        samples: list[int] = []
        i = 0
        end = now() + length
        begin = now()
        while begin < end or not samples:
            one(i)
            done = now()
            samples.append(done - begin)
            i += 1
            begin = now()
        if measured:
            return quantiles(samples)
    raise AssertionError("unreachable")


def run_array(client: Client, command: dict[str, Any]) -> dict[str, float]:
    """Fetch the array again and again for `seconds`, after at most `warm` warm-up calls.

    This times the call, and the call with one read of the whole array. Slow contestants get fewer
    calls.
    """
    import numpy as np

    def view_of(got: Any) -> Any:
        return np.asarray(got) if hasattr(got, "dtype") else np.frombuffer(got, dtype=np.float32)

    nbytes, keep = int(command["nbytes"]), bool(command["keep"])
    kept: list[Any] = []
    calls: list[int] = []
    reads: list[int] = []
    stamp = 0
    # Six kept results are 720 MB; more would measure how the machine runs out of memory.
    rounds = ((int(command["warm"]), False), (_KEPT if keep else 1000, True))
    for count, measured in rounds:
        end = now() + int(command["seconds"] * 1e9)
        for done in range(count):
            if done > 0 and now() > end:
                break
            stamp += 1
            begin = now()
            got = client.array(nbytes, stamp)
            called = now()
            # The view dies before the next call: "dropped after use".
            view = view_of(got)
            if (
                view.nbytes != nbytes
                or view[0] != stamp
                or view[-1] != view.dtype.type(nbytes // 4 - 1)
            ):
                raise AssertionError(f"array({nbytes}) gave a wrong answer")
            begin_read = now()
            view.max()
            read = now() - begin_read
            if measured:
                calls.append(called - begin)
                reads.append(called - begin + read)
                if keep:
                    kept.append((stamp, got))
            del got, view
    # A kept result must still hold what came with it: a slot that was reused would show here.
    for mark, old in kept:
        if view_of(old)[0] != mark:
            raise AssertionError(f"array {mark} was overwritten while the caller kept it")
    return {**quantiles(calls), "read_p50": quantiles(reads)["p50"]}


def _loop(client: Client, seconds: float, reports: list[dict[str, Any]]) -> None:
    one = _small(client)
    samples: list[int] = []
    begin = started = now()
    end = begin + int(seconds * 1e9)
    while begin < end:
        one(len(samples))
        done = now()
        samples.append(done - begin)
        begin = done
    step = max(1, len(samples) // _SAMPLES_PER_CLIENT)
    reports.append(
        {"calls": len(samples), "seconds": (begin - started) / 1e9, "samples": samples[::step]}
    )


def _child(module: ModuleType, command: dict[str, Any], pipes: tuple[int, int, int]) -> None:
    ready, go, out = pipes
    client = connect(module, command["address"], command["timeout"])
    one = _small(client)
    for i in range(5):
        one(i)
    os.write(ready, b"r")
    os.read(go, 1)  # returns at end of file, when the parent starts all children
    reports: list[dict[str, Any]] = []
    arguments = (client, float(command["seconds"]), reports)
    others = [
        threading.Thread(target=_loop, args=arguments)
        for _ in range(getattr(module, "THREADS_PER_PROCESS", 1) - 1)
    ]
    for thread in others:
        thread.start()
    _loop(*arguments)
    for thread in others:
        thread.join()
    data = json.dumps(reports).encode()
    while data:
        data = data[os.write(out, data) :]
    client.close()


def run_fan(module: ModuleType, command: dict[str, Any]) -> dict[str, float]:
    """Fork `clients` processes that all call `small` for `seconds`; add up their calls."""
    ready_r, ready_w = os.pipe()
    go_r, go_w = os.pipe()
    children: dict[int, int] = {}
    for _ in range(int(command["clients"]) // getattr(module, "THREADS_PER_PROCESS", 1)):
        out_r, out_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(go_w)
                _child(module, command, (ready_w, go_r, out_w))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(out_w)
        children[out_r] = pid
    os.close(ready_w)
    try:
        waiting = len(children)
        end = time.monotonic() + float(command["timeout"])
        while waiting:
            if not select.select([ready_r], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{waiting} of {len(children)} clients did not connect")
            got = os.read(ready_r, 64)
            if not got:
                raise ConnectionError(f"{waiting} of {len(children)} clients ended early")
            waiting -= len(got)
        os.close(go_w)
        reports = _collect(children, time.monotonic() + float(command["seconds"]) + 30)
    finally:
        for pid in children.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for fd in (*children, ready_r, go_r):
            os.close(fd)
    samples = [sample for report in reports for sample in report["samples"]]
    rate = sum(report["calls"] / report["seconds"] for report in reports)
    return {**quantiles(samples), "count": sum(r["calls"] for r in reports), "rate": rate}


def _collect(children: dict[int, int], end: float) -> list[dict[str, Any]]:
    chunks: dict[int, list[bytes]] = {fd: [] for fd in children}
    waiting = set(children)
    while waiting:
        readable = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))[0]
        if not readable:
            raise TimeoutError(f"{len(waiting)} clients gave no report")
        for fd in readable:
            data = os.read(fd, 65536)
            if data:
                chunks[fd].append(data)
            else:
                waiting.discard(fd)
    if not all(chunks.values()):
        raise ConnectionError("a client ended without a report")
    return [report for parts in chunks.values() for report in json.loads(b"".join(parts))]


def main(name: str) -> None:
    """Answer commands until standard input ends or a command stops the probe."""
    answers: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = importlib.import_module(name)
    client: Client | None = None

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        what = command["do"]
        try:
            if what == "connect":
                if client is not None:
                    client.close()
                client = connect(module, command["address"], command["timeout"])
                answer({"answered_ns": time.monotonic_ns()})
            elif what == "fan":
                # A library whose clients cannot be forked has its own `fan`.
                fan = getattr(module, "fan", None)
                answer(fan(command) if fan is not None else run_fan(module, command))
            elif what == "stop":
                break
            elif client is None:
                raise RuntimeError(f"{what!r} before connect")
            elif what == "calls":
                answer(run_calls(client, command))
            elif what == "array":
                answer(run_array(client, command))
            else:
                raise RuntimeError(f"unknown command {what!r}")
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})
    if client is not None:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1])
