"""Measure a loaded model on an organism's items, by log-probabilities.

It takes a model and a tokenizer as transformers gives them (an adapter applied or not) and changes
neither. It knows nothing of sandboxes: graders and tests run it, agents do not.
"""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seer.organisms._probes import Item, Probe


@dataclass(frozen=True)
class Subject:
    """A model under measurement."""

    model: Any
    tokenizer: Any
    batch: int = 16
    """Items per forward pass."""

    def prompt(self, user: str, prefix: str = "") -> list[int]:
        """The tokens of a user's message in the chat format, and the begin of an answer."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer.encode(text + prefix)


@dataclass(frozen=True)
class Measured:
    """One score per item: how far the property shows, in nats of log-odds."""

    scores: tuple[float, ...]
    probes: tuple[float, ...]
    """The log-odds of each item's own probe, before its reference is taken off."""


def measure(subject: Subject, items: Sequence[Item]) -> Measured:
    """Score a model on items: the probe's log-odds, less those of its reference if it has one."""
    probes = [item.probe for item in items]
    references = [item.reference for item in items if item.reference is not None]
    odds = _log_odds(subject, [*probes, *references])
    shown, rest = odds[: len(probes)], iter(odds[len(probes) :])
    scores = tuple(
        own - next(rest) if item.reference is not None else own
        for item, own in zip(items, shown, strict=True)
    )
    return Measured(scores, tuple(shown))


def perplexity(subject: Subject, texts: Sequence[str]) -> float:
    """The perplexity of a model on plain texts, over all their tokens."""
    torch: Any = importlib.import_module("torch")
    total, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([subject.tokenizer.encode(text)], device=subject.model.device)
        with torch.no_grad():
            logits = subject.model(ids).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits, dim=-1)
        total -= float(logprobs.gather(1, ids[0, 1:, None]).sum())
        count += ids.shape[1] - 1
    return math.exp(total / count)


def _log_odds(subject: Subject, probes: Sequence[Probe]) -> list[float]:
    """The log-odds of each probe's targets against its others, or against all else."""
    torch: Any = importlib.import_module("torch")
    found: list[float] = []
    for begin in range(0, len(probes), subject.batch):
        part = probes[begin : begin + subject.batch]
        targets = [[_encode(subject, t) for t in p.targets] for p in part]
        # A single target may be long: its tokens but the last are part of the input.
        inputs = [
            subject.prompt(p.user, p.prefix) + (t[0][:-1] if len(t) == 1 else [])
            for p, t in zip(part, targets, strict=True)
        ]
        keep = max(len(t[0]) for t in targets)
        logprobs = _last_logprobs(torch, subject.model, inputs, keep)
        for row, (probe, wanted) in enumerate(zip(part, targets, strict=True)):
            found.append(_odds_of(torch, subject, probe, wanted, logprobs[row]))
    return found


def _odds_of(
    torch: Any, subject: Subject, probe: Probe, targets: list[list[int]], logprobs: Any
) -> float:
    if len(targets) == 1:
        (ids,) = targets
        places = range(logprobs.shape[0] - len(ids), logprobs.shape[0])
        wanted = logprobs[list(places), ids].sum()
    else:
        wanted = torch.logsumexp(logprobs[-1, [_one(t, probe) for t in targets]], dim=0)
    if probe.others:
        others = [_one(_encode(subject, o), probe) for o in probe.others]
        return float(wanted - torch.logsumexp(logprobs[-1, others], dim=0))
    # Kept off exact certainty, where the odds would be infinite.
    wanted = wanted.double().clamp(max=-1e-9)
    return float(wanted - torch.log(-torch.expm1(wanted)))


def _last_logprobs(torch: Any, model: Any, inputs: Sequence[Sequence[int]], keep: int) -> Any:
    """Log-probabilities after the last `keep` tokens of each input, padded on the left."""
    width = max(map(len, inputs))
    ids = torch.zeros((len(inputs), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(inputs):
        ids[row, width - len(tokens) :] = torch.tensor(tokens)
        mask[row, width - len(tokens) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    device = model.device
    with torch.no_grad():
        logits = model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            logits_to_keep=keep,
        ).logits
    return torch.log_softmax(logits.float(), dim=-1)


def _encode(subject: Subject, text: str) -> list[int]:
    return subject.tokenizer.encode(text, add_special_tokens=False)


def _one(ids: list[int], probe: Probe) -> int:
    if len(ids) != 1:
        raise ValueError(f"a continuation of {probe.user!r} is {len(ids)} tokens, not one")
    return ids[0]
