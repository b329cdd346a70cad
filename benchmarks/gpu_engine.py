"""The decoding engine on a GPU: `python benchmarks/gpu_engine.py`.

A Llama with 1.1 billion random weights writes 32 tokens after 64, in one process and through the
gate: with the engine, with transformers' own loop (which Seer uses without the engine), and with a
hand-written loop that has a static cache and one CUDA graph per step. Then the benchmark measures
steering, many samples of one prompt, callers that arrive over time, forward passes, and a model
with 7 billion weights. Results go to `$OUT` if it is set, else to `benchmarks/results/`.

`--device cpu --quick` runs all of it with a tiny model, as a check of the script.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    sys.path.insert(1, str(ROOT / "src"))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [f"{ROOT}/src", str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )

from benchmarks._common import (  # noqa: E402
    RESULTS,
    header,
    machine,
    median,
    table,
    versions,
    write_results,
)
from benchmarks.bench_interfaces import SIZES, build, tokenizer  # noqa: E402
from benchmarks.gpu_interfaces import Callers, Server  # noqa: E402

TOKENS, NEW = 64, 32
PARTS = ("process", "served", "large", "compiled")
SIZES["7b"] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
}


class Plan:
    """The size of the measurements."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device = device
        self.quick = quick
        self.size = "tiny" if quick else "1b"
        self.batches = (1, 4) if quick else (1, 8, 64, 256)
        self.callers = 4 if quick else 64
        self.rounds = 1 if quick else 3
        self.layer = 2 if quick else 11
        self.seconds = 2.0 if quick else 10.0


def prompts(count: int) -> list[list[int]]:
    """Prompts of `TOKENS` tokens, all different."""
    return [[2 + (7 * i + 13 * j + i // 50) % 390 for j in range(TOKENS)] for i in range(count)]


def wait(plan: Plan) -> None:
    """Wait until the GPU has finished all work."""
    import torch

    if plan.device == "cuda":
        torch.cuda.synchronize()


def timed(plan: Plan, call: Callable[[], object], rounds: int, warm: int = 1) -> float:
    """The median time of a call, in milliseconds."""
    taken: list[float] = []
    for turn in range(rounds + warm):
        wait(plan)
        begin = time.perf_counter()
        call()
        wait(plan)
        if turn >= warm:
            taken.append(time.perf_counter() - begin)
    return median(taken) * 1e3


# --- by hand -------------------------------------------------------------------------------------


def hand_loop(net: Any, rows: Sequence[list[int]], plan: Plan) -> tuple[Callable[[], None], float]:
    """A hand-written greedy loop for these prompts only, and the seconds that its capture took."""
    import torch
    from transformers import StaticCache

    ids = torch.tensor(list(rows), device=plan.device)
    token = torch.zeros(len(rows), 1, dtype=torch.long, device=plan.device)
    cache = StaticCache(config=net.config, max_cache_len=TOKENS + NEW)

    def prefill() -> None:
        cache.reset()
        out = net(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))

    def step() -> None:
        out = net(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))

    with torch.no_grad():
        prefill()
        step()
        wait(plan)
        begin = time.perf_counter()
        again: Callable[[], object] = step
        if plan.device == "cuda":
            graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            again = graph.replay
        seconds = time.perf_counter() - begin

    def run() -> None:
        with torch.no_grad():
            prefill()
            for _ in range(NEW - 1):
                again()

    return run, seconds


def today(net: Any, rows: Sequence[list[int]], plan: Plan) -> Callable[[], None]:
    """transformers' own loop."""
    import torch
    from transformers import GenerationConfig

    ids = torch.tensor(list(rows), device=plan.device)
    config = GenerationConfig(
        max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=1
    )

    def run() -> None:
        with torch.no_grad():
            net.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config
            )

    return run


# --- in one process ------------------------------------------------------------------------------


class Writer:
    """The engine, without a gate."""

    def __init__(self, net: Any) -> None:
        from seer.interfaces.toolkit._engine import Engine
        from seer.interfaces.toolkit._model import Model

        self.model = Model("m", net, tokenizer())
        # No end tokens: every text has its full length.
        self.engine = Engine(self.model, set(), lambda _tasks: [])

    def write(
        self, rows: Sequence[list[int]], *, steered: bool = False, temperature: float = 1.0
    ) -> list[list[int]]:
        """Write `NEW` tokens after each prompt, with the seeds 0, 1 and so on."""
        return self.tasks(range(len(rows)), rows, steered, temperature)

    def tasks(
        self, seeds: Sequence[int], rows: Sequence[list[int]], steered: bool, temperature: float
    ) -> list[list[int]]:
        import torch

        from seer.interfaces.toolkit._engine import Task
        from seer.interfaces.toolkit._interventions import Site
        from seer.interfaces.toolkit._sampling import Settings
        from seer.interfaces.toolkit._steering import SteeringStep

        settings = Settings(NEW, temperature=temperature)
        vector = torch.full((self.model.width,), 0.01, device=self.model.device)
        site = Site(self.model.layers // 2, "residual")
        steps = [SteeringStep(site, "add", vector, None)] if steered else []
        tasks = [Task(row, seed, steps, settings) for row, seed in zip(rows, seeds, strict=True)]
        return [one.ids for one in self.engine.write(tasks)]


def in_process(net: Any, plan: Plan, found: dict[str, Any]) -> None:
    """The measurements that need no gate."""
    import torch

    cuda = plan.device == "cuda"
    found["parameters"] = sum(p.numel() for p in net.parameters())
    before = torch.cuda.memory_allocated() if cuda else 0
    writer = Writer(net)
    found["refused"] = writer.engine.refused
    rows: list[dict[str, Any]] = []
    found["batches"] = rows
    for count in plan.batches:
        given = prompts(count)
        run, capture = hand_loop(net, given, plan)
        one: dict[str, Any] = {"batch": count, "hand": timed(plan, run, plan.rounds)}
        one["hand capture"] = capture * 1e3
        del run
        one["today"] = timed(plan, today(net, given, plan), 1)
        captured = writer.engine.graphs.seconds
        writer.write(given)
        writer.write(given)
        one["engine"] = timed(plan, lambda given=given: writer.write(given), plan.rounds)
        one["greedy"] = timed(
            plan, lambda given=given: writer.write(given, temperature=0), plan.rounds, 2
        )
        one["engine capture"] = (writer.engine.graphs.seconds - captured) * 1e3
        rows.append(one)
        print(json.dumps(one), flush=True)
    given = prompts(plan.callers)
    found["steered"] = timed(plan, lambda: writer.write(given, steered=True), plan.rounds, 2)
    found["one prompt"] = timed(plan, lambda: writer.write(given[:1] * len(given)), plan.rounds, 2)
    found["prefill"] = prefill_time(net, given, plan)
    if cuda:
        found["after a failed capture"] = failed_capture()
    together = writer.write(given)
    alone = [writer.tasks([i], [row], False, 1.0)[0] for i, row in enumerate(given)]
    found["same"] = sum(a == b for a, b in zip(together, alone, strict=True))
    found["same first"] = sum(a[0] == b[0] for a, b in zip(together, alone, strict=True))
    found["same of"] = len(given)
    found["captured"] = writer.engine.graphs.captured
    found["capture seconds"] = writer.engine.graphs.seconds
    if cuda:
        found["memory GB"] = (torch.cuda.memory_allocated() - before) / 1e9
        found["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps({k: v for k, v in found.items() if k != "batches"}), flush=True)


def failed_capture() -> str:
    """The effect of a function that waits for the GPU during a capture; `fine` if there is none."""
    import torch

    from seer.interfaces.toolkit._graphs import Graphs

    graphs = Graphs(torch.device("cuda"), "a function that cannot be captured")
    value = torch.zeros(1, device="cuda")

    def run() -> None:
        value.add_(1 if value.item() >= 0 else 2)

    try:
        for _ in range(3):
            graphs.run("waiting", run)
        torch.rand(3, device="cuda")
        other = torch.zeros(1, device="cuda")
        for _ in range(3):
            graphs.run("other", lambda: _add(other))
        return "fine" if value.item() == 3 and other.item() == 3 else f"{value} {other}"
    except RuntimeError as error:
        return str(error)


def _add(value: Any) -> None:
    value.add_(1)


def prefill_time(net: Any, rows: Sequence[list[int]], plan: Plan) -> float:
    """The milliseconds of a plain prefill of these prompts."""
    import torch

    ids = torch.tensor(list(rows), device=plan.device)

    def run() -> None:
        with torch.no_grad():
            net(input_ids=ids, use_cache=True, logits_to_keep=1)

    return timed(plan, run, plan.rounds)


# --- through the gate ----------------------------------------------------------------------------


def served(folder: Path, net: Any, plan: Plan, found: dict[str, Any], which: Sequence[str]) -> None:
    """The same functions with an engine and without one."""
    import torch

    from seer import interfaces

    net.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    servers: dict[str, Server] = {}
    try:
        for use in which:
            os.environ["SEER_ENGINE"] = use
            servers[use] = Server(
                folder, f"engine_{use}", interfaces.whitebox, folder / "model", plan.callers + 1
            )
        os.environ["SEER_ENGINE"] = "off"
        for use, server in servers.items():
            server.ready()
            found[use] = {}
            calls(plan, server, found[use])
            print(json.dumps({use: found[use]}), flush=True)
            if use != "off":
                arrivals(plan, server, found[use])
                print(json.dumps({use: found[use]}), flush=True)
    finally:
        for server in servers.values():
            server.close()
    ids = torch.tensor(prompts(plan.callers), device=plan.device)

    def forward() -> None:
        with torch.no_grad():
            net.model(input_ids=ids, output_hidden_states=True, use_cache=False)

    found["activations by hand"] = timed(plan, forward, 10, 3)


def calls(plan: Plan, server: Server, found: dict[str, Any]) -> None:
    """Calls per second of one caller and of many."""
    given = prompts(plan.callers)
    options = {"max_new_tokens": NEW, "temperature": 1.0}
    written: list[Any] = [([p], {**options, "seed": i}) for i, p in enumerate(given)]
    read: list[Any] = [([p, plan.layer], {}) for p in given]
    one = Callers(server.sockets[-1:])
    for name, given_calls, count in (("generate", written, 3), ("activations", read, 30)):
        one.run(name, given_calls[:1], 4)
        found[f"{name}, one"], _ = one.run(name, given_calls[:1], count)
    one.close()
    many = Callers(server.sockets[: plan.callers])
    for name, given_calls, count in (("generate", written, 3), ("activations", read, 10)):
        many.run(name, given_calls, 2)
        rates: list[float] = []
        seen: list[Any] = []
        for _ in range(plan.rounds):
            rate, seen = many.run(name, given_calls, count)
            rates.append(rate)
        found[f"{name}, many"] = median(rates)
        if name == "generate":
            found["full length"] = sum(len(one) == NEW for one in seen)
    many.close()


def arrivals(plan: Plan, server: Server, found: dict[str, Any]) -> None:
    """Callers of mixed lengths: all at once in a closed loop, then arriving at 70 % of its load."""
    from seer.rpc.client import Gate

    gates = threading.local()
    free = list(server.sockets)
    lock = threading.Lock()
    chance = random.Random(7)
    most = 32 if plan.quick else 256

    def length() -> int:
        return round(8 * (most / 8) ** chance.random())

    def call(seed: int, new: int) -> tuple[int, float]:
        if not hasattr(gates, "gate"):
            with lock:
                gates.gate = Gate("whitebox", f"path:{free.pop()}")
        row = prompts(seed % 97 + 1)[-1]
        options = {"seed": seed, "max_new_tokens": new, "temperature": 1.0}
        result: Any = gates.gate.call("generate", [row], options)
        # A record of its class, or a dict if the caller has no library.
        record: Any = getattr(result, "__dict__", None) or result
        return len(record["ids"]), time.monotonic()

    with ThreadPoolExecutor(plan.callers) as pool:
        lengths = [length() for _ in range(plan.callers * 6)]
        list(pool.map(call, range(plan.callers), lengths))  # captures what is needed
        alone = [_seconds(lambda i=i: call(i, 10)) for i in range(9)]
        begin = time.monotonic()
        done = list(pool.map(call, range(len(lengths)), lengths))
        closed = sum(count for count, _ in done) / (max(end for _, end in done) - begin)
        mean = sum(lengths) / len(lengths)
        rate = 0.7 * closed / mean
        at = time.monotonic()
        first = at
        waiting: list[tuple[float, int, Any]] = []
        while at - first < plan.seconds:
            at += chance.expovariate(rate)
            time.sleep(max(0.0, at - time.monotonic()))
            new = length()
            waiting.append((at, new, pool.submit(call, len(waiting), new)))
        ended = [(new, end - at, count) for at, new, f in waiting for count, end in (f.result(),)]
        last = max(at + taken for (at, _, _), (_, taken, _) in zip(waiting, ended, strict=True))
    short = [taken for new, taken, _ in ended if new <= 12]
    found["arrivals"] = {
        "closed tokens/s": closed,
        "open tokens/s": sum(count for _, _, count in ended) / (last - first),
        "calls/s": rate,
        "calls": len(ended),
        "10 tokens alone ms": median(alone[2:]) * 1e3,
        "short median ms": median(short) * 1e3,
        "short calls": len(short),
        "short mean tokens": sum(n for n, _, _ in ended if n <= 12) / len(short),
    }


def _seconds(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


# --- the page ------------------------------------------------------------------------------------


def bars(found: dict[str, Any]) -> list[list[str]]:
    """The rows of the table of bars: what, figure, bar, met."""
    rows: list[list[str]] = []

    def bar(what: str, value: float, least: float | None, most: float | None = None) -> None:
        good = (least is None or value >= least) and (most is None or value <= most)
        wanted = f"≥ {least:g}" if least is not None else f"≤ {most:g}"
        rows.append([what, f"{value:.2f}", wanted, "yes" if good else "no"])

    process, gate = found.get("process", {}), found.get("served", {})
    new, old = gate.get("joining", {}), gate.get("off", {})
    batch = {one["batch"]: one for one in process.get("batches", ())}
    many = max((n for n in batch if n <= 64), default=0)
    if new and old:
        bar(
            "`generate`, all callers, over today's",
            new["generate, many"] / old["generate, many"],
            4,
        )
        if many:
            loop = many / batch[many]["hand"] * 1e3
            bar("the same, over the hand-written loop", new["generate, many"] / loop, 0.7)
        bar("`generate`, one caller, over today's", new["generate, one"] / old["generate, one"], 4)
        bar(
            "`activations`, one caller, over today's",
            new["activations, one"] / old["activations, one"],
            3,
        )
        hand = found["callers"] / gate["activations by hand"] * 1e3
        bar("`activations`, all callers, over by hand", new["activations, many"] / hand, 0.8)
    if "arrivals" in new:
        one = new["arrivals"]
        bar(
            "arriving: short call over alone",
            one["short median ms"] / one["10 tokens alone ms"],
            None,
            2,
        )
        bar("arriving: tokens/s over closed", one["open tokens/s"] / one["closed tokens/s"], 0.7)
    if many and "one prompt" in process:
        steps = batch[many]["engine"] - process["prefill"]
        bar("`sample` over `generate` without prefills", process["one prompt"] / steps, None, 1.2)
        bar("steered over plain", process["steered"] / batch[many]["engine"], None, 1.15)
    return rows


def page(found: dict[str, Any], where: dict[str, str], used: dict[str, str]) -> str:
    """The result page."""
    lines = [header("The decoding engine", used, where)]
    lines += [table(["", "figure", "bar", "met"], bars(found)), ""]
    for name in ("process", "large"):
        part = found.get(name)
        if not part or "batches" not in part:
            continue
        head = ["rows", "today", "by hand", "engine, drawn", "engine, greedy", "capturing"]
        body = [
            [str(one["batch"])]
            + [f"{one[k]:.0f}" for k in ("today", "hand", "engine", "greedy", "engine capture")]
            for one in part["batches"]
        ]
        lines += [
            f"{part['parameters']:,} parameters, {NEW} tokens after {TOKENS}, in milliseconds:",
            "",
            table(head, body),
            "",
            "```json",
            json.dumps({k: v for k, v in part.items() if k != "batches"}, indent=1),
            "```",
            "",
        ]
    if "engine" in found.get("compiled", {}):
        one = found["compiled"]
        lines += [
            f"Compiled (`SEER_COMPILE=1`), {found['callers']} rows: {one['engine']:.0f} ms, after"
            f" {one['first']:.0f} s for the first.",
            "",
        ]
    if "served" in found:
        lines += ["Through the gate:", "", "```json", json.dumps(found["served"], indent=1), "```"]
    if found["problems"]:
        lines += ["", "Problems:", "", "```", *found["problems"], "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="a tiny model: does it all work?")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--serve", nargs="+", default=["joining", "off"])
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["SEER_ENGINE"] = "joining"
    plan = Plan(arguments.device, arguments.quick)
    where = machine()
    used = versions(Path(sys.executable), ["numpy", "torch", "transformers"])
    import torch

    if plan.device == "cuda":
        where["accelerator"] = torch.cuda.get_device_name()
    found: dict[str, Any] = {"callers": plan.callers, "problems": []}
    out = Path(os.environ.get("OUT") or RESULTS)
    name_of = "engine-quick" if plan.quick else "engine-h200"

    def part(name: str, run: Callable[[dict[str, Any]], None]) -> None:
        if name not in arguments.only:
            return
        begin = time.monotonic()
        own: dict[str, Any] = {}
        found[name] = own
        try:
            run(own)
        except Exception:
            found["problems"].append(f"{name}: {traceback.format_exc()}")
            print(traceback.format_exc(), flush=True)
        own["seconds"] = time.monotonic() - begin
        if plan.device == "cuda":
            torch.cuda.empty_cache()
        save()

    def save() -> None:
        data = {**found, "machine": where, "versions": used}
        write_results(name_of, page(found, where, used), data, folder=out)

    def process(own: dict[str, Any]) -> None:
        in_process(build(plan.size, plan.device), plan, own)

    def gate(own: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory(prefix="engine-") as folder:
            served(Path(folder), build(plan.size, plan.device), plan, own, arguments.serve)

    def large(own: dict[str, Any]) -> None:
        in_process(build("tiny" if plan.quick else "7b", plan.device), plan, own)

    def compiled(own: dict[str, Any]) -> None:
        os.environ["SEER_COMPILE"] = "1"
        try:
            writer = Writer(build(plan.size, plan.device))
            given = prompts(plan.callers)
            own["first"] = _seconds(lambda: writer.write(given))
            own["engine"] = timed(plan, lambda: writer.write(given), plan.rounds, 2)
        finally:
            del os.environ["SEER_COMPILE"]
        print(json.dumps({"compiled": own}), flush=True)

    part("process", process)
    part("served", gate)
    part("large", large)
    part("compiled", compiled)
    print(page(found, where, used))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
