"""What a model writes: continuations of prompts, answers in conversations."""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList

from ._batches import prepare_each, run_each
from ._inside import generate_changed
from ._limits import MAX_NEW_TOKENS, MAX_SAMPLES, MAX_TOP, check_count, check_number
from ._model import Model, Prompt
from ._records import Generation, Message, Steering
from ._registry import find
from ._sampling import Choice
from ._steering import Step, changes_of, check_steering

_SEEDS = 2**63 - 1


@dataclass(frozen=True)
class _Task:
    row: list[int]
    seed: int
    steps: list[Step]


@dataclass(frozen=True)
class _Settings:
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    stop: tuple[str, ...]

    def __post_init__(self) -> None:
        check_count("max_new_tokens", self.max_new_tokens, MAX_NEW_TOKENS)
        check_number("temperature", self.temperature, 0, 100)
        check_number("top_p", self.top_p, 1e-6, 1)
        check_count("top_k", self.top_k, MAX_TOP, least=0)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        check_count("stop", len(self.stop), 16, least=0)


def generate(
    prompt: list[Prompt],
    *,
    seed: Sequence[int] = (0,),
    steering: Sequence[list[Steering]] = ([],),
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    repetition_penalty: float = 1.0,
    stop: tuple[str, ...] = (),
    model: str | None = None,
) -> list[Generation]:
    """Continue a prompt.

    Args:
        prompt: Text, or token ids.
        seed: Which sample to draw; the same seed gives the same text. Without meaning at
            temperature 0.
        steering: Changes of the model's activations while it writes.
        max_new_tokens: How many tokens to write at most.
        temperature: 0 for the likeliest token each time.
        top_p: Draw only from the likeliest tokens that have this probability together.
        top_k: Draw only from this many likeliest tokens; 0 for all.
        repetition_penalty: Above 1, tokens that came before are less likely to come again.
        stop: Texts that end the writing; they are not part of the result.
        model: Which model.
    """
    chosen = find(model)
    settings = _Settings(max_new_tokens, temperature, top_p, top_k, repetition_penalty, stop)

    def prepare(one: Prompt, number: int, changes: list[Steering]) -> _Task:
        return _task(chosen, one, number, changes, settings)

    return _run(chosen, prepare_each(prepare, prompt, seed, steering), settings)


def sample(
    prompt: Prompt,
    count: int,
    *,
    seed: int = 0,
    steering: list[Steering] | None = None,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    repetition_penalty: float = 1.0,
    stop: tuple[str, ...] = (),
    model: str | None = None,
) -> list[Generation]:
    """Continue a prompt several times, with the seeds `seed`, `seed + 1` and so on.

    Args:
        prompt: Text, or token ids.
        count: How many continuations.
        seed: The first one's seed.
        steering: Changes of the model's activations while it writes.
        max_new_tokens: How many tokens to write at most.
        temperature: 0 for the likeliest token each time.
        top_p: Draw only from the likeliest tokens that have this probability together.
        top_k: Draw only from this many likeliest tokens; 0 for all.
        repetition_penalty: Above 1, tokens that came before are less likely to come again.
        stop: Texts that end the writing; they are not part of the result.
        model: Which model.
    """
    chosen = find(model)
    check_count("count", count, MAX_SAMPLES)
    settings = _Settings(max_new_tokens, temperature, top_p, top_k, repetition_penalty, stop)
    tasks = [_task(chosen, prompt, seed + i, steering or [], settings) for i in range(count)]
    return _run(chosen, tasks, settings)


def chat(
    messages: list[list[Message]],
    *,
    seed: Sequence[int] = (0,),
    steering: Sequence[list[Steering]] = ([],),
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    repetition_penalty: float = 1.0,
    stop: tuple[str, ...] = (),
    model: str | None = None,
) -> list[Generation]:
    """Answer in a conversation, through the model's chat template.

    Args:
        messages: The conversation so far: a role (`user`, `assistant` ...) and a content each.
        seed: Which sample to draw; without meaning at temperature 0.
        steering: Changes of the model's activations while it writes.
        max_new_tokens: How many tokens to write at most.
        temperature: 0 for the likeliest token each time.
        top_p: Draw only from the likeliest tokens that have this probability together.
        top_k: Draw only from this many likeliest tokens; 0 for all.
        repetition_penalty: Above 1, tokens that came before are less likely to come again.
        stop: Texts that end the writing; they are not part of the result.
        model: Which model.
    """
    chosen = find(model)
    settings = _Settings(max_new_tokens, temperature, top_p, top_k, repetition_penalty, stop)

    def prepare(one: list[Message], number: int, changes: list[Steering]) -> _Task:
        return _task(chosen, chosen.chat_text(one), number, changes, settings)

    return _run(chosen, prepare_each(prepare, messages, seed, steering), settings)


def _task(
    model: Model, prompt: Prompt, seed: int, steering: list[Steering], settings: _Settings
) -> _Task:
    row = model.encode(prompt, room=settings.max_new_tokens)
    check_number("seed", seed, 0, _SEEDS)
    return _Task(row, seed, check_steering(model, steering, len(row)))


def _run(model: Model, tasks: Sequence[Any], settings: _Settings) -> list[Generation]:
    def run(group: list[_Task]) -> list[Generation]:
        return _write(model, group, settings)

    return run_each(tasks, lambda task: len(task.row) + settings.max_new_tokens, run)


def _write(model: Model, tasks: list[_Task], settings: _Settings) -> list[Generation]:
    batch = model.pad_rows([task.row for task in tasks])
    # transformers makes the positions itself, and goes on from them.
    del batch["position_ids"]
    choice = Choice(
        [task.seed for task in tasks],
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        repetition_penalty=settings.repetition_penalty,
        prompts=[task.row for task in tasks],
    )
    ends = _end_tokens(model)
    options: dict[str, Any] = {
        "generation_config": GenerationConfig(
            max_new_tokens=settings.max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(ends) or None,
            pad_token_id=model.pad,
            stop_strings=list(settings.stop) or None,
        ),
        "logits_processor": LogitsProcessorList([choice]),
    }
    if settings.stop:
        options["tokenizer"] = model.tokenizer
    changes = changes_of([task.steps for task in tasks], [len(task.row) for task in tasks])
    if changes:
        generate_changed(model, batch, changes, options)
    else:
        with torch.no_grad():
            model.net.generate(**batch, **options)
    ids = torch.stack(choice.ids, 1).tolist()
    logprobs = torch.stack(choice.logprobs, 1).tolist()
    return [
        _generation(model, row, own, ends, settings) for row, own in zip(ids, logprobs, strict=True)
    ]


def _generation(
    model: Model, ids: list[int], logprobs: list[float], ends: set[int], settings: _Settings
) -> Generation:
    """One row, cut where it ended: others of its batch may have gone on."""
    end = next((i for i, token in enumerate(ids) if token in ends), None)
    count = len(ids) if end is None else end
    text = str(model.tokenizer.decode(ids[:count], skip_special_tokens=True))
    finished = end is not None
    cut = min((at for stop in settings.stop if (at := text.find(stop)) >= 0), default=None)
    if cut is not None:
        finished = True
        count = _tokens_until(model, ids[:count], settings.stop)
        text = text[:cut]
    return Generation(
        text=text,
        ids=ids[:count],
        logprobs=logprobs[:count],
        finish="stop" if finished else "length",
    )


def _tokens_until(model: Model, ids: list[int], stops: Sequence[str]) -> int:
    """How many tokens it took until a stop text was complete."""
    for count in range(1, len(ids) + 1):
        text = str(model.tokenizer.decode(ids[:count], skip_special_tokens=True))
        if any(stop in text for stop in stops):
            return count
    return len(ids)


def _end_tokens(model: Model) -> set[int]:
    """The tokens that end a text, from the generation settings and the tokenizer."""
    found: set[int] = set()
    for one in (model.suggested.eos_token_id, model.tokenizer.eos_token_id):
        found.update([one] if isinstance(one, int) else one or [])
    return found
