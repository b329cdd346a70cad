"""Text that a model writes: continuations of prompts, and answers in conversations."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict

import torch
from transformers import GenerationConfig, LogitsProcessorList

from seer.errors import ModelInputError

from ._batches import prepare_each, run_each
from ._engine import Engine, Task, Written
from ._graphs import engine_use
from ._interventions import generate_changed
from ._limits import (
    BATCH_TOKENS,
    MAX_SAMPLES,
    MAX_TOKENS,
    check_count,
    check_number,
)
from ._model import Model, Prompt
from ._records import Generation, Message, Steering, TemplateOptions
from ._registry import find, loaded
from ._sampling import Choice, Settings
from ._steering import changes_of, check_steering

_SEEDS = 2**63 - 1
_TOGETHER = 64
"""The most concurrent calls of one function with an engine."""


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
        seed: Which sample to draw; the same seed gives the same text. It has no effect at
            temperature 0.
        steering: Changes of the model's activations while it writes.
        max_new_tokens: The most tokens to write.
        temperature: 0 takes the likeliest token each time.
        top_p: Draw only from the likeliest tokens whose probabilities sum to this.
        top_k: Draw only from this many likeliest tokens; 0 for all tokens.
        repetition_penalty: Above 1, tokens that have occurred become less likely.
        stop: Texts that end the writing; the result does not contain them.
        model: Which model; the first by default.
    """
    chosen = find(model)
    settings = Settings(max_new_tokens, temperature, top_p, top_k, repetition_penalty, stop)

    def prepare(one: Prompt, number: int, changes: list[Steering]) -> Task:
        return _task(chosen, one, number, changes, settings)

    return _run(chosen, prepare_each(prepare, prompt, seed, steering))


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
        count: How many continuations to draw.
        seed: The seed of the first one.
        steering: Changes of the model's activations while it writes.
        max_new_tokens: The most tokens to write.
        temperature: 0 takes the likeliest token each time.
        top_p: Draw only from the likeliest tokens whose probabilities sum to this.
        top_k: Draw only from this many likeliest tokens; 0 for all tokens.
        repetition_penalty: Above 1, tokens that have occurred become less likely.
        stop: Texts that end the writing; the result does not contain them.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_count("count", count, MAX_SAMPLES)
    settings = Settings(max_new_tokens, temperature, top_p, top_k, repetition_penalty, stop)
    first = _task(chosen, prompt, seed, steering or [], settings)
    check_number("seed", seed + count - 1, 0, _SEEDS)
    return _run(chosen, [replace(first, seed=seed + i) for i in range(count)])


def chat(
    messages: list[list[Message]],
    *,
    prefill: Sequence[str] = ("",),
    seed: Sequence[int] = (0,),
    steering: Sequence[list[Steering]] = ([],),
    template: TemplateOptions | None = None,
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
        prefill: How the answer begins. The model goes on from there, and the result contains only
            what the model adds.
        seed: Which sample to draw. It has no effect at temperature 0.
        steering: Changes of the model's activations while it writes.
        template: Options of the chat template, such as `{"enable_thinking": False}`. Options that
            the template does not read are refused.
        max_new_tokens: The most tokens to write.
        temperature: 0 takes the likeliest token each time.
        top_p: Draw only from the likeliest tokens whose probabilities sum to this.
        top_k: Draw only from this many likeliest tokens; 0 for all tokens.
        repetition_penalty: Above 1, tokens that have occurred become less likely.
        stop: Texts that end the writing; the result does not contain them.
        model: Which model; the first by default.
    """
    chosen = find(model)
    settings = Settings(max_new_tokens, temperature, top_p, top_k, repetition_penalty, stop)

    def prepare(one: list[Message], begin: str, number: int, changes: list[Steering]) -> Task:
        text = chosen.chat_text(one, prefill=begin, template=template)
        # The template has already written the special tokens.
        row = chosen.encode(text, room=settings.max_new_tokens, special=False)
        return _task(chosen, row, number, changes, settings)

    return _run(chosen, prepare_each(prepare, messages, prefill, seed, steering))


def _task(
    model: Model, prompt: Prompt, seed: int, steering: list[Steering], settings: Settings
) -> Task:
    row = model.encode(prompt, room=settings.max_new_tokens)
    check_number("seed", seed, 0, _SEEDS)
    return Task(row, seed, check_steering(model, steering, len(row)), settings)


def _run(model: Model, tasks: Sequence[Any]) -> list[Generation]:
    engine = engine_of(model)
    ends = end_tokens(model)

    def run(group: list[Task]) -> list[Generation]:
        found = _write_plainly(model, group) if engine is None else engine.write(group)
        return [
            _generation(model, one, ends, task.settings)
            for one, task in zip(found, group, strict=True)
        ]

    # The engine makes its own batches.
    most = BATCH_TOKENS if engine is None else MAX_TOKENS
    return run_each(
        tasks, lambda task: len(task.row) + task.settings.max_new_tokens, run, most=most
    )


def engine_of(model: Model) -> Engine | None:
    """The engine that writes a model's texts; None if the loop of transformers writes them."""
    if engine_use() == "off":
        return None
    # Take a turn only to create the engine: calls that wait for a turn would delay the engine.
    if model.engine is None:
        with model.turn:
            if model.engine is None:
                model.engine = Engine(model, end_tokens(model), partial(_write_plainly, model))
    return model.engine


class Exposed(TypedDict):
    """Options of `expose`."""

    max_concurrency: int | None
    timeout: float
    idempotent: bool
    stateful: bool


def writing() -> Exposed:
    """The options of `expose` for functions that write text.

    With an engine, each call goes to the engine when it arrives. Without one, calls are collected
    into batches. If `SEER_CAPTURE` is set, this captures CUDA graphs.

    Raises:
        ModelInputError: An environment variable of the engine has an invalid value.
    """
    return {
        "max_concurrency": _TOGETHER if _calls_join() else None,
        "timeout": 600,
        "idempotent": True,
        "stateful": False,
    }


def _calls_join() -> bool:
    if engine_use() == "off":
        return False
    engines = [engine for model in loaded() if (engine := engine_of(model)) is not None]
    if ahead := os.environ.get("SEER_CAPTURE"):
        rows, _, length = ahead.partition("x")
        if not (rows.isdecimal() and length.isdecimal()):
            raise ModelInputError(f"SEER_CAPTURE={ahead!r}: must be rows x length, like '64x1024'")
        for engine in engines:
            engine.prepare(int(rows), int(length))
    return engine_use() == "joining" and not any(engine.refused for engine in engines)


def _write_plainly(model: Model, tasks: list[Task]) -> list[Written]:
    """Write texts with equal settings in the loop of transformers."""
    settings = tasks[0].settings
    batch = model.pad_rows([task.row for task in tasks])
    # transformers computes the positions of prompt and text itself.
    del batch["position_ids"]
    choice = Choice([task.seed for task in tasks], settings, [task.row for task in tasks])
    options: dict[str, Any] = {
        "generation_config": GenerationConfig(
            max_new_tokens=settings.max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(end_tokens(model)) or None,
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
        with model.turn, torch.no_grad():
            model.net.generate(**batch, **options)
    ids = torch.stack(choice.ids, 1).tolist()
    logprobs = torch.stack(choice.logprobs, 1).tolist()
    return [Written(*pair) for pair in zip(ids, logprobs, strict=True)]


def _generation(model: Model, written: Written, ends: set[int], settings: Settings) -> Generation:
    """The result of one row, cut at its end, because other rows may be longer."""
    ids, logprobs = written.ids, written.logprobs
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
    """The number of tokens until a stop text is complete."""
    for count in range(1, len(ids) + 1):
        text = str(model.tokenizer.decode(ids[:count], skip_special_tokens=True))
        if any(stop in text for stop in stops):
            return count
    return len(ids)


def end_tokens(model: Model) -> set[int]:
    """The tokens that end a text, from the generation settings and the tokenizer."""
    found: set[int] = set()
    for one in (model.suggested.eos_token_id, model.tokenizer.eos_token_id):
        found.update([one] if isinstance(one, int) else one or [])
    return found
