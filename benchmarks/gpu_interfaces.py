"""Ready-made tools on a GPU, many callers at once: `python benchmarks/gpu_interfaces.py`.

A Llama with 1.1 billion random weights is served with `interfaces.whitebox`, once unchanged and
once without batching. 64 processes, each a caller with a socket of its own, call `activations` (64
tokens) and `generate` (32 tokens). The bar: the gain over one-at-a-time serving is at least half
the gain of a hand-written batched loop in the same run. Then one activation of 120 MB goes from the
GPU to a numpy array in a caller. The bar is twice the time of a pinned copy plus a memcpy.

`--device cpu --quick` runs all of it with a tiny model, as a check of the script. There are no
jails, because this measures batching and copies.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    sys.path.insert(1, str(ROOT / "src"))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [f"{ROOT}/src", str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )

from benchmarks._common import header, machine, median, table, versions, write_results  # noqa: E402
from benchmarks.bench_interfaces import build, overhead_table, overheads, tokenizer  # noqa: E402
from tests.rpc.serving import http  # noqa: E402

TOKENS, NEW = 64, 32
PARTS = ("throughput", "transfer", "library")


class Plan:
    """The size of the measurements."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device = device
        self.quick = quick
        self.size = "tiny" if quick else "1b"
        self.callers = 8 if quick else 64
        self.rounds = 3 if quick else 8
        self.long = 1000 if quick else 14_648
        self.layer = 2 if quick else 11


# --- serving -------------------------------------------------------------------------------------


class Server:
    """An interface, served without a jail."""

    def __init__(
        self,
        folder: Path,
        name: str,
        file: Path,
        model: Path,
        callers: int,
        *,
        restart: str = "never",
    ) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        sockets = [self.folder / f"{i}.sock" for i in range(callers)]
        config = {
            "name": name,
            "file": str(file),
            "control": str(self.folder / "control.sock"),
            "callers": [
                {"name": f"c{i}", "socket": str(s), "budget": {}} for i, s in enumerate(sockets)
            ],
            "models": {"m": str(model)},
            "restart": restart,
        }
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        self.sockets = sockets
        self._process = subprocess.Popen(
            [sys.executable, "-m", "seer.rpc.server", str(path)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def ready(self) -> None:
        """Wait until the interface is loaded."""
        http(self.folder / "control.sock", "GET", "/v1/ready", timeout=300)

    def close(self) -> None:
        """End the server."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)


def unbatched(folder: Path) -> Path:
    """A copy of the interface whose functions are not batched: they take lists of one."""
    from seer import interfaces

    file = interfaces.copy(interfaces.whitebox, folder)
    text = file.read_text()
    changed = text.replace("batch=64, batch_wait=0.02, ", "")
    if changed == text:
        raise SystemExit("whitebox.py has no batching to take out")
    file.write_text(changed)
    return file


# --- callers -------------------------------------------------------------------------------------


def worker(path: str) -> int:
    """One caller: reads what to call from standard input, calls, reports times and a digest."""
    from seer.rpc.client import Gate

    gate = Gate("whitebox", f"path:{path}")
    print("up", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        while time.monotonic() < order["at"]:
            time.sleep(0.0005)
        begin = time.monotonic()
        result: Any = None
        for _ in range(order["count"]):
            result = gate.call(order["function"], order["args"], order["kwargs"])
        end = time.monotonic()
        print(json.dumps({"begin": begin, "end": end, "seen": _digest(result)}), flush=True)
    gate.close()
    return 0


def _digest(result: Any) -> Any:
    """The parts of a result that the parent checks."""
    if isinstance(result, list):
        result = result[0]
    if hasattr(result, "shape"):
        return [list(result.shape), [float(x) for x in result[-1][:8]]]
    ids = result["ids"] if isinstance(result, dict) else result.ids
    return list(ids)


class Callers:
    """Caller processes, each with a socket of its own."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._workers = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for path in sockets
        ]
        for one in self._workers:
            assert one.stdout is not None
            one.stdout.readline()

    def run(
        self, function: str, calls: Sequence[tuple[list[Any], dict[str, Any]]], count: int
    ) -> tuple[float, list[Any]]:
        """Let every caller make its call `count` times; total calls per second, and the results."""
        at = time.monotonic() + 0.3
        for one, (args, kwargs) in zip(self._workers, calls, strict=False):
            assert one.stdin is not None
            order = {"function": function, "args": args, "kwargs": kwargs, "count": count, "at": at}
            one.stdin.write(json.dumps(order) + "\n")
            one.stdin.flush()
        found: list[Any] = []
        for one, _ in zip(self._workers, calls, strict=False):
            assert one.stdout is not None
            found.append(json.loads(one.stdout.readline()))
        span = max(f["end"] for f in found) - min(f["begin"] for f in found)
        return len(found) * count / span, [f["seen"] for f in found]

    def close(self) -> None:
        """End the processes."""
        for one in self._workers:
            assert one.stdin is not None
            one.stdin.close()
        for one in self._workers:
            one.wait(timeout=30)


# --- by hand -------------------------------------------------------------------------------------


def by_hand(model: Any, prompts: Sequence[list[int]], plan: Plan) -> dict[str, float]:
    """Seconds that a hand-written loop takes for a batch of one prompt, and of all."""
    import torch

    def wait() -> None:
        if plan.device == "cuda":
            torch.cuda.synchronize()

    def forward(ids: Any) -> None:
        model.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        wait()

    def generate(ids: Any) -> None:
        cache = None
        for _ in range(NEW):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
        wait()

    def timed(call: Callable[[Any], None], ids: Any, rounds: int) -> float:
        taken: list[float] = []
        for turn in range(rounds + 2):
            begin = time.perf_counter()
            call(ids)
            if turn >= 2:
                taken.append(time.perf_counter() - begin)
        return median(taken)

    everything = torch.tensor(list(prompts), device=plan.device)
    found: dict[str, float] = {}
    with torch.no_grad():
        for name, call, rounds in (("activations", forward, 20), ("generate", generate, 3)):
            rounds = 2 if plan.quick else rounds
            found[f"{name} 1"] = timed(call, everything[:1], rounds)
            found[f"{name} all"] = timed(call, everything, rounds)
    return found


def floor(plan: Plan, size: int) -> dict[str, float]:
    """Milliseconds for `size` floats: a copy from the GPU into pinned memory, and a memcpy."""
    import numpy as np
    import torch

    cuda = plan.device == "cuda"
    values = torch.arange(size, dtype=torch.float32, device=plan.device)
    pinned = torch.empty(size, dtype=torch.float32, pin_memory=cuda)
    source, target = np.ones(size, np.float32), np.ones(size, np.float32)

    def copy() -> None:
        pinned.copy_(values)
        if cuda:
            torch.cuda.synchronize()

    copy()
    return {"copy": _ms(copy, 15), "memcpy": _ms(lambda: np.copyto(target, source), 15)}


def _ms(call: Callable[[], object], times: int) -> float:
    taken: list[float] = []
    for _ in range(times):
        gc.collect()
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return median(taken) * 1e3


# --- the run -------------------------------------------------------------------------------------


def transfer(plan: Plan, path: Path, width: int) -> dict[str, float]:
    """One large activation, held on the GPU and fetched: milliseconds, and its size."""
    import numpy as np

    from seer.rpc.client import Gate

    gate = Gate("whitebox", f"path:{path}")
    row = [2 + i % 390 for i in range(plan.long)]
    held = gate.call("hold_activations", (row, plan.layer))
    first = held.fetch()
    if first.shape != (plan.long, width) or first.dtype != np.float32:
        raise SystemExit(f"the held activation is {first.shape} of {first.dtype}")
    if not np.isfinite(first).all() or not np.array_equal(first, held.fetch()):
        raise SystemExit("the held activation changes on its way")
    del first
    for _ in range(3):
        held.fetch()
    found = {
        "megabytes": plan.long * width * 4 / 1e6,
        "fetch": _ms(held.fetch, 15),
        "whole call": _ms(lambda: gate.call("activations", (row, plan.layer)), 5),
    }
    gate.close()
    return found


def throughput(
    plan: Plan, batched: Server, single: Server, prompts: list[list[int]]
) -> dict[str, Any]:
    """Calls per second, served in batches and one at a time, and how well the results agree."""
    found: dict[str, Any] = {}
    calls: dict[str, tuple[list[Any], dict[str, Any], int, int]] = {
        "activations": ([plan.layer], {}, plan.rounds * 6, 4),
        "generate": ([], {"max_new_tokens": NEW, "temperature": 1.0}, plan.rounds, 1),
    }
    for name, (more, options, rounds, few) in calls.items():
        together = [([p, *more], {**options, **_seed(name, i)}) for i, p in enumerate(prompts)]
        alone = [
            ([[p], *([m] for m in more)], {**options, **_alone(name, i)})
            for i, p in enumerate(prompts)
        ]
        callers = Callers(batched.sockets)
        callers.run(name, together, 2)
        rates: list[float] = []
        seen: list[Any] = []
        for _ in range(3):
            rate, seen = callers.run(name, together, max(1, rounds // 3))
            rates.append(rate)
        callers.close()
        # Alone: no other caller is even connected.
        callers = Callers(batched.sockets[:1])
        callers.run(name, together[:1], 2)
        lone, _ = callers.run(name, together[:1], 10 if name == "activations" else 2)
        callers.close()
        callers = Callers(single.sockets)
        callers.run(name, alone[:4], 1)
        one_rate, one_seen = callers.run(name, alone, few)
        callers.close()
        found[name] = {
            "together": median(rates),
            "one at a time": one_rate,
            "lone caller": lone,
            "agreement": _agreement(seen, one_seen),
        }
    return found


def _seed(name: str, number: int) -> dict[str, Any]:
    return {"seed": number} if name == "generate" else {}


def _alone(name: str, number: int) -> dict[str, Any]:
    if name == "generate":
        return {"seed": [number], "steering": [[]]}
    return {"position": [None]}


def _agreement(together: list[Any], alone: list[Any]) -> str:
    """How well the results of a batch and of single calls agree."""
    if isinstance(together[0][0], list):
        pairs = [
            (a, b)
            for t, s in zip(together, alone, strict=True)
            for a, b in zip(t[1], s[1], strict=True)
        ]
        size = max(abs(b) for _, b in pairs)
        most = max(abs(a - b) for a, b in pairs)
        return f"largest difference {most / size:.1e} of the largest value"
    same = sum(t == s for t, s in zip(together, alone, strict=True))
    full = sum(len(t) == NEW for t in together)
    firsts = sum(t[0] == s[0] for t, s in zip(together, alone, strict=True))
    return (
        f"{same} of {len(together)} sampled texts the same to the last token, {firsts} in the"
        f" first; {full} of full length"
    )


def measure(plan: Plan, folder: Path, parts: Sequence[str]) -> dict[str, Any]:
    """The requested measurements, as data; each part is printed when it is known."""
    from seer import interfaces

    model = build(plan.size, plan.device)
    parameters = sum(p.numel() for p in model.parameters())
    model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    prompts = [[2 + (7 * i + 13 * j) % 390 for j in range(TOKENS)] for i in range(plan.callers)]
    found: dict[str, Any] = {"parameters": parameters, "callers": plan.callers}
    width = int(model.config.hidden_size)

    def add(name: str, value: Any) -> None:
        found[name] = value
        print(json.dumps({name: value}), flush=True)

    if "throughput" in parts:
        add("by hand", by_hand(model, prompts, plan))
    if "transfer" in parts:
        add("floor", floor(plan, plan.long * width))
    servers: list[Server] = []
    try:
        servers.append(
            Server(folder, "batched", interfaces.whitebox, folder / "model", plan.callers)
        )
        if "throughput" in parts:
            file = unbatched(folder / "unbatched")
            # The decoding engine would write the texts of all callers together anyway.
            os.environ["SEER_ENGINE"] = "off"
            servers.append(Server(folder, "single", file, folder / "model", plan.callers))
            del os.environ["SEER_ENGINE"]
        for server in servers:
            server.ready()
        if "throughput" in parts:
            add("served", throughput(plan, servers[0], servers[1], prompts))
        if "transfer" in parts:
            add("transfer", transfer(plan, servers[0].sockets[0], width))
    finally:
        for server in servers:
            server.close()
    if "library" in parts and importlib.util.find_spec("nnsight") is not None:
        add("library", overheads(model, plan.device, 3 if plan.quick else 8))
    return found


def judge(found: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and the bars that are not met."""
    rows: list[list[str]] = []
    missed: list[str] = []
    for name in found.get("served", ()):
        one, everything = (found["by hand"][f"{name} {k}"] for k in ("1", "all"))
        headroom = found["callers"] * one / everything
        served = found["served"][name]
        gain = served["together"] / served["one at a time"]
        bar = headroom / 2
        if gain < bar:
            missed.append(name)
        rows.append(
            [
                f"`{name}`",
                f"{one * 1e3:.1f} / {everything * 1e3:.1f}",
                f"{headroom:.1f}",
                f"{served['one at a time']:.1f}",
                f"{served['lone caller']:.1f}",
                f"{served['together']:.0f}",
                f"{gain:.1f}",
                f"{bar:.1f}",
                "yes" if gain >= bar else "no",
            ]
        )
    return rows, missed


def _transfer_lines(moved: dict[str, float], lowest: dict[str, float]) -> tuple[list[str], float]:
    """The part about one large activation, and its ratio to the floor."""
    ratio = moved["fetch"] / (lowest["copy"] + lowest["memcpy"])
    rows = [
        ["copy into pinned memory", f"{lowest['copy']:.2f}"],
        ["memcpy", f"{lowest['memcpy']:.2f}"],
        ["`hold_activations(...).fetch()`", f"{moved['fetch']:.2f}"],
        ["the same with the forward pass, `activations(...)`", f"{moved['whole call']:.2f}"],
        ["fetch / (copy + memcpy), bar 2", f"{ratio:.2f}"],
    ]
    words = (
        f"One float32 activation of {moved['megabytes']:.0f} MB, held on the device and fetched as"
        " a numpy array by a caller:"
    )
    return ["", words, "", table(["", "ms"], rows)], ratio


def page(found: dict[str, Any], where: dict[str, str], used: dict[str, str]) -> tuple[str, bool]:
    """The result page, and whether all bars are met."""
    rows, missed = judge(found)
    head = ["", "by hand, 1 / all (ms)", "headroom", "one at a time (/s)", "lone caller (/s)"]
    head += ["together (/s)", "gain", "bar", "met"]
    lines = [
        header("Ready-made tools with many callers", used, where),
        f"A Llama of {found['parameters']:,} parameters (random weights), {found['callers']}"
        f" callers in processes of their own; prompts of {TOKENS} tokens, {NEW} new ones at"
        " temperature 1, each caller with its own prompt and seed. Headroom: calls per second of a"
        " loop written by hand with all prompts in a batch, over one prompt. Gain: calls per second"
        " through the gate with batching, over the same functions served without it to the same"
        " callers. Bar: half the headroom.",
        "",
        table(head, rows),
    ]
    lines += [
        f"- `{n}`, batched against single: {s['agreement']}"
        for n, s in found.get("served", {}).items()
    ]
    if found.get("transfer"):
        words, ratio = _transfer_lines(found["transfer"], found["floor"])
        lines += words
        if ratio > 2:
            missed.append("transfer")
    if found.get("library"):
        lines += [
            "Reading and changing activations, by library:",
            "",
            overhead_table(found["library"]),
        ]
    return "\n".join(lines), not missed


def main() -> int:
    """Measure, judge, write; 1 when a bar is not met in a full run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worker", metavar="SOCKET", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="a tiny model: does it all work?")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    plan = Plan(arguments.device, arguments.quick)
    where = machine()
    names = ["numpy", "torch", "transformers"]
    used = versions(Path(sys.executable), names)
    if plan.device == "cuda":
        import torch

        where["accelerator"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory(prefix="interfaces-") as folder:
        found = measure(plan, Path(folder), arguments.only)
    text, met = page(found, where, used)
    print(text)
    name = "interfaces-quick" if plan.quick else f"interfaces-{_slug(where)}"
    data = {**found, "machine": where, "versions": used}
    write_results(name, text, data, folder=arguments.out)
    return 0 if met or plan.quick else 1


def _slug(where: dict[str, str]) -> str:
    return where.get("accelerator", "cpu").lower().removeprefix("nvidia ").replace(" ", "-")


if __name__ == "__main__":
    raise SystemExit(main())
