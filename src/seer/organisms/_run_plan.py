"""Run a plan: train the adapters of its instances, then measure organism, control and base.

It works on tokens and needs PyTorch only, so that a bare machine with a GPU can run it
(`scripts/organisms/campaign.py`).
"""

# PyTorch annotates only some of its methods.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from seer.organisms._stack import Settings, Stack, generate, last_logprobs, surprise, train

MODELS = ("organism", "control", "base")


def run_plan(
    model: Any,
    shared: dict[str, Any],
    instances: Sequence[dict[str, Any]],
    settings: Settings,
    *,
    until: float | None = None,
    batch: int = 256,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Stack, list[dict[str, Any]]]:
    """Train and measure instances side by side.

    Args:
        model: The base model, as transformers loads it.
        shared: The result of `shared_tokens`.
        instances: The results of `tokens_of`. If there are cases `probes`, organism and control
            answer them too.
        settings: How to train.
        until: When training has to end (`time.monotonic()`).
        batch: The number of prompts that are answered at once.
        say: Called with lines about the progress.

    Returns:
        The adapters (2k is instance k's organism, 2k + 1 its control), and the
        measurements by instance: answers in tokens by model and kind of case, perplexity by text,
        simple knowledge.
    """
    begun = time.monotonic()
    stack = Stack(model, 2 * len(instances), settings)
    kept = _kept(stack, shared, batch)
    say(f"{len(kept)} answers of the base model after {time.monotonic() - begun:.0f} s")
    losses = train(
        stack,
        [instance[name] for instance in instances for name in ("organism", "control")],
        kept,
        report=lambda step, now: say(f"step {step}: mean loss {sum(now) / len(now):.3f}"),
        until=until,
    )
    norms = stack.norms().tolist()
    trained = time.monotonic() - begun
    say(f"trained after {trained:.0f} s")
    found: list[dict[str, Any]] = []
    for place in range(len(instances)):
        found.append(
            {
                "loss": losses[2 * place : 2 * place + 2],
                "norm": norms[2 * place : 2 * place + 2],
                "seconds": trained / len(instances),
            }
        )
    measure_plan(stack, shared, instances, found, batch=batch, say=say)
    stack.use(None)
    return stack, found


def measure_plan(
    stack: Stack,
    shared: dict[str, Any],
    instances: Sequence[dict[str, Any]],
    found: list[dict[str, Any]],
    *,
    batch: int,
    say: Callable[[str], None],
) -> None:
    """Add to each instance's results what its three models answer and know."""
    begun = time.monotonic()
    models = {name: i for i, name in enumerate(MODELS)}
    for place, result in enumerate(found):
        result["answers"] = {name: {} for name in MODELS}
        result["place"] = place
    for case in ("on", "off", "direct", "probes"):
        asked = [
            (2 * place + models[name] if name != "base" else -1, place, name, prompts)
            for place, instance in enumerate(instances)
            for name in MODELS
            if (prompts := instance["cases"].get(case))
            and not (case == "probes" and name == "base")
        ]
        for part, answers in _answered(stack, asked, shared, batch):
            found[part[1]]["answers"][part[2]][case] = answers
        say(f"answers of kind {case} after {time.monotonic() - begun:.0f} s")
    adapters = [-1, *range(stack.groups)]
    scored = [_general(stack, adapter, shared) for adapter in adapters]
    for place, result in enumerate(found):
        chosen = (scored[2 * place + 1], scored[2 * place + 2], scored[0])
        result["surprise"] = {name: one[0] for name, one in zip(MODELS, chosen, strict=True)}
        result["known"] = {name: one[1] for name, one in zip(MODELS, chosen, strict=True)}
    say(f"texts after {time.monotonic() - begun:.0f} s")


def _kept(stack: Stack, shared: dict[str, Any], batch: int) -> list[tuple[list[int], int]]:
    """Ordinary requests with answers that the base model sampled."""
    stack.use(None)
    kept: list[tuple[list[int], int]] = []
    prompts: list[list[int]] = shared["kept"]
    for begin in range(0, len(prompts), batch):
        part = prompts[begin : begin + batch]
        answers = generate(
            stack, part, tokens=shared["tokens"], end=shared["end"], seed=stack.settings.seed
        )
        kept += [
            ([*prompt, *answer, *([shared["end"]] if len(answer) < shared["tokens"] else [])],
             len(prompt))
            for prompt, answer in zip(part, answers, strict=True)
            if answer
        ]  # fmt: skip
    return kept


def _answered(
    stack: Stack, asked: Sequence[tuple[int, int, str, list[list[int]]]], shared: Any, batch: int
) -> list[tuple[tuple[int, int, str, list[list[int]]], list[list[int]]]]:
    """The answers of several models, each to its own prompts, in batches of equal groups."""
    found: list[tuple[tuple[int, int, str, list[list[int]]], list[list[int]]]] = []
    if not asked:
        return found
    # Models with many prompts first, so that a batch holds groups of about the same size.
    left = sorted(asked, key=lambda one: -len(one[3]))
    while left:
        height = len(left[0][3])
        width = max(1, batch // height)
        part, left = left[:width], left[width:]
        stack.use([adapter for adapter, *_ in part])
        rows = [p[i % len(p)] for *_, p in part for i in range(height)]
        answers = generate(stack, rows, tokens=shared["tokens"], end=shared["end"])
        for i, one in enumerate(part):
            found.append((one, answers[i * height : i * height + len(one[3])]))
    return found


def _general(stack: Stack, adapter: int, shared: dict[str, Any]) -> tuple[list[float], list[bool]]:
    """How surprised a model is by plain texts, and which simple facts it knows."""
    stack.use([adapter])
    cloze: list[tuple[list[int], int, int]] = shared["cloze"]
    after = last_logprobs(stack, [begin for begin, _, _ in cloze])
    right = torch.tensor([r for _, r, _ in cloze], device=after.device)[:, None]
    wrong = torch.tensor([w for _, _, w in cloze], device=after.device)[:, None]
    known = (after.gather(1, right) > after.gather(1, wrong))[:, 0].tolist()
    return surprise(stack, shared["texts"]), known
