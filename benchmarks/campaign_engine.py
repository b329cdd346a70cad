"""The decoding engine under attack: `python benchmarks/campaign_engine.py`.

The campaign fills the GPU before and during generation, stops a capture in the middle, kills the
interface's process while it captures, kills half of the callers in the middle of a batch, and makes
calls with forbidden arguments. All other callers must get the same texts as without an attack;
otherwise the status is 1.

`--device cpu --quick` runs the attacks that need no GPU on a tiny model, as a check of the script.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
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

from benchmarks._common import RESULTS, header, machine, table, versions, write_results  # noqa: E402
from benchmarks.bench_interfaces import build, tokenizer  # noqa: E402
from benchmarks.gpu_engine import NEW, Plan, Writer, prompts, timed  # noqa: E402
from benchmarks.gpu_interfaces import Server  # noqa: E402

Outcome = tuple[str, bool]
"""What happened, and whether it is acceptable."""
_LITTLE, _NONE = 200 << 20, 2 << 20
"""Bytes of GPU memory that an attack leaves free."""
_REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("a billion tokens", {"max_new_tokens": 10**9}),
    ("no token", {"max_new_tokens": 0}),
    ("an empty prompt", {"prompt": []}),
    ("a prompt of 100,000 tokens", {"prompt": [3] * 100_000}),
    ("tokens that do not exist", {"prompt": [10**9]}),
    ("an empty stop text", {"stop": [""]}),
    ("a stop text of a megabyte", {"stop": ["x" * (1 << 20)]}),
    ("a thousand stop texts", {"stop": ["x"] * 1000}),
    ("a negative seed", {"seed": -1}),
    ("a temperature of 1e9", {"temperature": 1e9}),
]


# --- in one process ------------------------------------------------------------------------------


def fill(left: int) -> list[Any]:
    """Take all GPU memory except `left` bytes."""
    import torch

    torch.cuda.empty_cache()
    taken: list[Any] = []
    size = torch.cuda.mem_get_info()[0] - left
    while size > 1 << 20:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            size = torch.cuda.mem_get_info()[0] - left
        except torch.OutOfMemoryError:
            size //= 2
    return taken


def tried(call: Callable[[], Any]) -> Any:
    """A call's result, or its error."""
    try:
        return call()
    except Exception as error:
        return error


def _named(found: Any) -> bool:
    from seer.errors import CallLimitError

    return isinstance(found, CallLimitError) and "SEER_CACHE_SHARE" in str(found)


def worst_choice(net: Any, rows: list[list[int]], texts: list[list[int]]) -> float:
    """The largest gap of a greedy text's token to the best logit of one plain forward pass."""
    import torch

    ids = torch.tensor([row + text for row, text in zip(rows, texts, strict=True)], device="cuda")
    with torch.inference_mode():
        logits = net(ids).logits[:, len(rows[0]) - 1 : -1].float()
    chosen = logits.gather(-1, ids[:, len(rows[0]) :, None]).squeeze(-1)
    return (logits.amax(-1) - chosen).max().item()


def full_before(net: Any, left: int, plan: Plan) -> Outcome:
    """No memory for the cache: fewer rows at once, or an error that names the variable."""
    import torch

    given = prompts(plan.callers)
    peace = Writer(net)
    expected = peace.write(given)
    usual = worst_choice(net, given, peace.write(given, temperature=0))
    del peace
    writer = Writer(net)
    taken = fill(left)
    found = tried(lambda: writer.write(given))
    del taken
    torch.cuda.empty_cache()
    later = tried(lambda: writer.write(given))
    written = isinstance(found, list) and all(len(one) == NEW for one in found)
    told = (
        f"all {len(given)} texts written" if written else f"{type(found).__name__}: {found!s:.90}"
    )
    good = written or _named(found)
    if later == expected:
        return f"{told}; afterwards as in peace", good
    if not isinstance(later, list):
        return f"{told}; afterwards {later!r:.90}", False
    # With fewer rows at once, the same sums are rounded differently, so samples may differ.
    same = sum(one == other for one, other in zip(later, expected, strict=True))
    worst = worst_choice(net, given, writer.write(given, temperature=0))
    after = (
        f"{same} of {len(given)} texts as in peace, greedy tokens within {worst:.3f} of the best"
    )
    return f"{told}; afterwards {after} logit (in peace {usual:.3f})", good and worst <= 2 * usual


def full_meanwhile(net: Any, plan: Plan) -> Outcome:
    """Memory runs out during generation: no running text is lost; new rows wait or fail."""
    import torch

    writer = Writer(net)
    given = prompts(256)
    expected = writer.write(given[:64])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(writer.tasks, range(64), given[:64], False, 1.0)
        taken = fill(_LITTLE)
        more = tried(lambda: writer.write(given))
        first = tried(running.result)
    del taken
    torch.cuda.empty_cache()
    later = tried(lambda: writer.write(given[:64]))
    written = isinstance(more, list)
    good = first == expected and later == expected and (written or _named(more))
    return (
        f"64 texts {'as in peace' if first == expected else repr(first)[:150]}, 256 more"
        f" {'were written' if written else str(more)[:150]}"
    ), good


def stopped_capture(_net: Any, _plan: Plan) -> Outcome:
    """A call is stopped in the middle of a capture: the next one captures."""
    import torch

    from seer.interfaces.toolkit._graphs import Graphs

    class Stopped(BaseException):
        pass

    graphs = Graphs(torch.device("cuda"), "a capture that is stopped")
    value = torch.zeros(1, device="cuda")
    stop = False

    def run() -> None:
        value.add_(1)
        if stop:
            raise Stopped

    graphs.run("it", run)
    stop = True
    try:
        graphs.run("it", run)
    except Stopped:
        stop = False
    torch.rand(3, device="cuda")
    for _ in range(3):
        graphs.run("it", run)
    found = value.item()
    return f"{found:g} of 4 additions, {graphs.captured} captured", found == 4 and not stop


def endless_stops(net: Any, plan: Plan) -> Outcome:
    """Stop texts that never occur, as many and as long as allowed: their cost for other callers."""
    from seer.interfaces.toolkit._engine import Task
    from seer.interfaces.toolkit._sampling import Settings

    writer = Writer(net)
    stops = tuple(f"{i:02d}" + "\N{SNOWMAN}" * 126 for i in range(16))

    def write(stop: tuple[str, ...]) -> list[list[int]]:
        settings = Settings(4 * NEW, temperature=1.0, stop=stop)
        tasks = [Task(row, i, [], settings) for i, row in enumerate(prompts(plan.callers))]
        return [one.ids for one in writer.engine.write(tasks)]

    expected = write(())
    same = write(stops) == expected
    plain = timed(plan, lambda: write(()), plan.rounds)
    took = timed(plan, lambda: write(stops), plan.rounds)
    # On a tiny model all time is that of looking for them.
    good = same and (plan.quick or took < 3 * plain)
    return f"{took:.0f} ms instead of {plain:.0f}, {'the same' if same else 'OTHER'} texts", good


# --- through the gate ----------------------------------------------------------------------------


def call(socket: Path, prompt: Any, **options: Any) -> list[int]:
    """The tokens that one call of `generate` gets, over a connection of its own."""
    from seer.rpc.client import Gate

    gate = Gate("whitebox", f"path:{socket}")
    try:
        result: Any = gate.call("generate", [prompt], options)
        record: Any = getattr(result, "__dict__", None) or result
        return list(record["ids"])
    finally:
        gate.close()


def together(server: Server, count: int) -> list[Any]:
    """The results of callers that call at the same time; a failed call has its error instead."""

    def one(i: int) -> Any:
        options = {"seed": i, "max_new_tokens": NEW, "temperature": 1.0}
        return tried(lambda: call(server.sockets[i], prompts(i + 1)[-1], **options))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def killed_capture(server: Server, plan: Plan) -> Outcome:
    """The interface's process is killed while it captures, several times; then it serves."""
    ended: list[str] = []
    for after in (0.05, 0.3, 0.8):
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(together, server, plan.callers)
            time.sleep(after)
            for child in server.children():
                os.kill(child, signal.SIGKILL)
            found = running.result()
        ended += [type(one).__name__ for one in found if isinstance(one, Exception)]
        server.ready()
    last = together(server, plan.callers)
    good = all(isinstance(one, list) and len(one) == NEW for one in last)
    lost = {name: ended.count(name) for name in sorted(set(ended))}
    return f"{len(ended)} of {3 * plan.callers} calls lost {lost}; then all served: {good}", good


def killed_callers(server: Server, plan: Plan) -> Outcome:
    """Half of the callers are killed in the middle of a batch; the others get their texts."""
    half = plan.callers // 2
    together(server, plan.callers)
    code = "import sys, benchmarks.campaign_engine as c; c.long_call(sys.argv[1])"
    doomed = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        for path in server.sockets[half : plan.callers]
    ]
    for one in doomed:
        assert one.stdout is not None
        one.stdout.readline()
    expected = together(server, half)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(together, server, half)
        for one in doomed:
            one.kill()
            one.wait()
        found = running.result()
    again = together(server, plan.callers)
    kept = sum(a == b for a, b in zip(found, expected, strict=True))
    served = sum(isinstance(one, list) for one in again)
    good = all(isinstance(one, list) for one in found) and served == plan.callers
    return (
        f"{kept} of {half} texts the same as before the kills, none lost; {served} of"
        f" {plan.callers} callers served afterwards"
    ), good


def long_call(path: str) -> None:
    """A call that takes long, from a process that will be killed."""
    threading.Timer(0.2, lambda: print("calling", flush=True)).start()
    call(Path(path), prompts(3)[-1], max_new_tokens=2048, temperature=1.0)


def refused(server: Server, plan: Plan) -> Outcome:
    """Calls with forbidden arguments during generation: each is refused at once."""
    bad: list[str] = []
    slowest = 0.0
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(together, server, plan.callers)
        for what, options in _REFUSED:
            begin = time.monotonic()
            given = {"prompt": prompts(1)[0], **options}
            found = tried(
                lambda given=given: call(server.sockets[-1], given.pop("prompt"), **given)
            )
            slowest = max(slowest, time.monotonic() - begin)
            if not isinstance(found, ValueError):
                bad.append(f"{what}: {found!r:.100}")
        others = running.result()
    good = not bad and all(isinstance(one, list) for one in others)
    return f"{len(_REFUSED)} calls refused, {slowest * 1e3:.0f} ms at most {'; '.join(bad)}", good


# --- the run -------------------------------------------------------------------------------------


class Watched(Server):
    """A server that knows its processes."""

    def children(self) -> list[int]:
        """The processes below it."""
        pid = self._process.pid
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> int:
    """Run the attacks, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="a tiny model: does it all work?")
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["SEER_ENGINE"] = "joining"
    plan = Plan(arguments.device, arguments.quick)
    cuda = plan.device == "cuda"
    where = machine()
    used = versions(Path(sys.executable), ["numpy", "torch", "transformers"])
    rows: list[list[str]] = []

    def attack(what: str, run: Callable[..., Outcome], *given: Any) -> None:
        try:
            found, good = run(*given, plan)
        except Exception:
            found, good = traceback.format_exc(), False
        rows.append([what, found.replace("\n", " "), "yes" if good else "no"])
        print(json.dumps(rows[-1]), flush=True)

    net = build(plan.size, plan.device)
    if cuda:
        import torch

        where["accelerator"] = torch.cuda.get_device_name()
        attack("200 MB of GPU memory left for the first text", full_before, net, _LITTLE)
        attack("2 MB of GPU memory left for the first text", full_before, net, _NONE)
        attack("200 MB left while texts are written", full_meanwhile, net)
        attack("a capture is stopped in the middle", stopped_capture, net)
    attack("stop texts that never come", endless_stops, net)
    with tempfile.TemporaryDirectory(prefix="engine-") as name:
        folder = Path(name)
        net.save_pretrained(folder / "model")
        tokenizer().save_pretrained(folder / "model")
        del net
        through_gate(folder, plan, attack)
    page = header("The decoding engine under attack", used, where)
    page += "\n" + table(["attack", "outcome", "as it should"], rows) + "\n"
    print(page)
    name_of = "engine-attacks-quick" if plan.quick else "engine-attacks"
    out = Path(os.environ.get("OUT") or RESULTS)
    write_results(name_of, page, {"rows": rows, "machine": where, "versions": used}, folder=out)
    return 0 if all(row[2] == "yes" for row in rows) else 1


def through_gate(folder: Path, plan: Plan, attack: Callable[..., None]) -> None:
    """The attacks that need a served interface."""
    from seer import interfaces

    server = Watched(
        folder,
        "attacked",
        interfaces.whitebox,
        folder / "model",
        plan.callers + 1,
        restart="on-failure",
    )
    try:
        server.ready()
        attack("the process is killed while it captures", killed_capture, server)
        attack("half of the callers are killed in mid-batch", killed_callers, server)
        attack("hostile arguments", refused, server)
    finally:
        server.close()


if __name__ == "__main__":
    raise SystemExit(main())
