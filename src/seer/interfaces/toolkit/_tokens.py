"""Tokens, and the distribution of the next one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._batches import prepare_each, run_each
from ._interventions import run_changed
from ._limits import MAX_TOP, check_count
from ._model import Model, Prompt
from ._reading import read_logits
from ._records import Message, NextTokens, Steering, TemplateOptions, Tokens, TokenScore
from ._registry import find
from ._steering import SteeringStep, changes_of, check_steering


@dataclass(frozen=True)
class _Task:
    row: list[int]
    steps: list[SteeringStep]


def tokenize(text: str, *, special: bool = True, model: str | None = None) -> Tokens:
    """Split a text into the model's tokens.

    Args:
        text: The text.
        special: Whether to add special tokens, as for a prompt. `chat` adds none to the output
            of the template.
        model: Which model; the first by default.
    """
    chosen = find(model)
    ids = chosen.encode(text, special=special)
    return Tokens(ids=ids, tokens=chosen.texts(ids))


def chat_prompt(
    messages: list[Message],
    *,
    prefill: str = "",
    template: TemplateOptions | None = None,
    model: str | None = None,
) -> str:
    """Make the text that `chat` would continue, with the model's chat template.

    If the tokenizer adds special tokens that the template does not write, other functions add them
    to this text. `tokenize(text, special=False).ids` is the prompt that `chat` continues.

    Args:
        messages: The conversation so far: a role (`user`, `assistant` ...) and a content each.
        prefill: How the answer begins; the text ends with it.
        template: Options of the chat template, such as `{"enable_thinking": False}`. Options that
            the template does not read are refused.
        model: Which model; the first by default.
    """
    return find(model).chat_text(messages, prefill=prefill, template=template)


def next_tokens(
    prompt: list[Prompt],
    *,
    steering: Sequence[list[Steering]] = ([],),
    k: int = 10,
    among: tuple[str, ...] = (),
    model: str | None = None,
) -> list[NextTokens]:
    """Compute the distribution of the token that comes after a prompt.

    Args:
        prompt: Text, or token ids.
        steering: Changes of the model's activations.
        k: How many of the likeliest tokens to give.
        among: Texts; the result also has the probability of the first token of each text.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_count("k", k, min(MAX_TOP, chosen.vocabulary))
    check_count("among", len(among), MAX_TOP, least=0)
    asked = [chosen.token_id(text) for text in among]

    def prepare(one: Prompt, changes: list[Steering]) -> _Task:
        row = chosen.encode(one)
        return _Task(row, check_steering(chosen, changes, len(row)))

    def run(tasks: list[_Task]) -> list[NextTokens]:
        logits = _last_logits(chosen, tasks)
        return [_distribution(chosen, row, k, asked) for row in logits.log_softmax(-1)]

    return run_each(prepare_each(prepare, prompt, steering), lambda task: len(task.row), run)


def _last_logits(model: Model, tasks: Sequence[_Task]) -> Tensor:
    rows = [task.row for task in tasks]
    changes = changes_of([task.steps for task in tasks], [len(row) for row in rows])
    if changes:
        return run_changed(model, model.pad_rows(rows), changes)[:, -1]
    captured = read_logits(model, rows)
    return last_logits(model, model.pad_rows(rows)) if captured is None else captured


def last_logits(model: Model, batch: dict[str, Tensor]) -> Tensor:
    """The logits after the last token of each row, in float32."""
    with model.turn, torch.no_grad():
        found: Tensor = model.net(**batch, logits_to_keep=1, use_cache=False).logits
    return found[:, -1].float()


def top_scores(model: Model, scores: Tensor, k: int) -> list[TokenScore]:
    """The tokens with the highest scores."""
    values, ids = scores.topk(k)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [TokenScore(token=model.token_text(i), id=i, score=value) for i, value in pairs]


def _distribution(model: Model, logprobs: Tensor, k: int, asked: Sequence[int]) -> NextTokens:
    chances = logprobs.exp()
    return NextTokens(
        top=top_scores(model, chances, k),
        among=[TokenScore(model.token_text(i), i, float(chances[i])) for i in asked],
        entropy=entropy(logprobs),
    )


def entropy(logprobs: Tensor) -> float:
    """The entropy of a distribution, in nats."""
    return float(torch.special.entr(logprobs.exp()).sum())
