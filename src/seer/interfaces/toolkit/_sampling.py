"""Choosing tokens, with a seed for each row, so that a batch gives the results of single calls.

Every row has its own random number for each token at each step, which depends only on the row's
seed, the step and the token. The token with the highest ratio of probability to random number is
chosen. This samples from the distribution, and a small change of the distribution, such as rounding
in another batch, rarely changes the choice. The numbers are hashes, computed with 32-bit integers,
so they are the same on every device, and inside or outside a CUDA graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import LogitsProcessor

from ._graphs import on_device
from ._limits import (
    MAX_NEW_TOKENS,
    MAX_STOP,
    MAX_STOPS,
    MAX_TOP,
    check_count,
    check_number,
)

Way = Literal["greedy", "drawn", "filtered"]
"""What the rows of a batch need: the likeliest token, a draw, or a draw with filters."""


@dataclass(frozen=True)
class Settings:
    """How the text of a row is generated."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_count("max_new_tokens", self.max_new_tokens, MAX_NEW_TOKENS)
        check_number("temperature", self.temperature, 0, 100)
        check_number("top_p", self.top_p, 1e-6, 1)
        check_count("top_k", self.top_k, MAX_TOP, least=0)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        check_count("stop", len(self.stop), MAX_STOPS, least=0)
        for text in self.stop:
            check_count("the length of a stop text", len(text), MAX_STOP)

    @property
    def way(self) -> Way:
        """How a token is chosen with these settings."""
        if self.repetition_penalty != 1:
            return "filtered"
        if self.temperature == 0:
            return "greedy"
        return "filtered" if self.top_k > 0 or self.top_p < 1 else "drawn"


class Dice:
    """The settings of some rows as tensors, for `choose`.

    Attributes:
        seed: The two 32-bit halves of each row's seed.
        step: The number of tokens that each row has written.
        seen: The tokens that each row has had, including its prompt; used for penalties.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((rows,), value, dtype=dtype, device=device)

        self.seed = torch.zeros(rows, 2, dtype=torch.int32, device=device)
        self.step = full(0, torch.int32)
        self.temperature = full(0)
        self.top_p = full(1)
        self.top_k = full(0, torch.int64)
        self.penalty = full(1)
        self.seen = torch.zeros(rows, vocabulary, dtype=torch.bool, device=device)

    def set(self, rows: Sequence[int], seeds: Sequence[int], settings: Sequence[Settings]) -> None:
        """Put rows at their beginning, each with its seed and settings."""
        where = on_device(rows, torch.int64, self.step.device)

        def put(target: Tensor, values: Sequence[Any]) -> None:
            target[where] = on_device(values, target.dtype, target.device)

        put(self.seed, [[_signed(seed), _signed(seed >> 32)] for seed in seeds])
        put(self.step, [0] * len(rows))
        # Dividing scores by less than this overflows; below it, the likeliest token always wins.
        cold = 1e-6
        put(self.temperature, [0 if t < cold else t for t in (s.temperature for s in settings)])
        put(self.top_p, [one.top_p for one in settings])
        put(self.top_k, [one.top_k for one in settings])
        put(self.penalty, [one.repetition_penalty for one in settings])

    def see(self, row: int, prompt: Sequence[int]) -> None:
        """Store the tokens of a row's prompt, for its penalty."""
        self.seen[row] = False
        self.seen[row, on_device(sorted(set(prompt)), torch.int64, self.seen.device)] = True

    def first(self, rows: int) -> "Dice":
        """The first rows, as views."""
        found = Dice.__new__(Dice)
        for name, value in vars(self).items():
            setattr(found, name, value[:rows])
        return found


def choose(scores: Tensor, dice: Dice, way: Way) -> tuple[Tensor, Tensor]:
    """The next token of each row, and its log-probability under the model's own distribution.

    Counts the step in `dice`.

    Args:
        scores: Logits in float32, rows by vocabulary.
        dice: The rows' settings.
        way: The most general way in which one of these rows chooses.
    """
    shaped = _penalized(scores, dice) if way == "filtered" else scores
    chosen = shaped.argmax(-1)
    if way != "greedy":
        greedy = dice.temperature == 0
        shaped = shaped / torch.where(greedy, 1.0, dice.temperature)[:, None]
        if way == "filtered":
            shaped = _filtered(shaped, dice)
        drawn = (shaped - _numbers(dice, scores.shape[-1])).argmax(-1)
        chosen = torch.where(greedy, chosen, drawn)
    if way == "filtered":
        dice.seen.scatter_(-1, chosen[:, None], True)
    dice.step += 1
    own = scores.gather(-1, chosen[:, None])[:, 0] - scores.logsumexp(-1)
    return chosen, own


def _penalized(scores: Tensor, dice: Dice) -> Tensor:
    """Scores after the repetition penalty for tokens that a row already has.

    The implementation of transformers counts padding as tokens of the rows.
    """
    penalty = dice.penalty[:, None]
    worse = torch.where(scores < 0, scores * penalty, scores / penalty)
    return torch.where(dice.seen, worse, scores)


def _filtered(scores: Tensor, dice: Dice) -> Tensor:
    """The scores of tokens that pass a row's top-k and then its top-p; minus infinity for
    others."""
    ordered, places = scores.sort(-1)
    size = scores.shape[-1]
    count = torch.where(dice.top_k > 0, dice.top_k, size).clamp(max=size)
    least = ordered.gather(-1, (size - count)[:, None])
    kept = ordered.masked_fill(ordered < least, -torch.inf)
    below = kept.softmax(-1).cumsum(-1) <= (1 - dice.top_p)[:, None]
    below[:, -1] = False
    below &= dice.top_p[:, None] < 1
    kept = kept.masked_fill(below, -torch.inf)
    return torch.empty_like(scores).scatter_(-1, places, kept)


def _numbers(dice: Dice, vocabulary: int) -> Tensor:
    """The logarithm of an exponential random number for each token of each row."""
    # The hash of 0 is 0. The constants prevent collisions there of small seeds, steps and tokens.
    key = _hash(dice.step ^ _signed(0xB5297A4D))
    key = _hash(_hash(key ^ dice.seed[:, 1]) ^ dice.seed[:, 0])
    found = _hash(_tokens(vocabulary, dice.seed.device) ^ key[:, None])
    # 23 bits plus a half are exact in float32, and are neither 0 nor 1.
    share = ((found >> 9) & 0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return share.neg_().log1p_().neg_().log_()


@cache
def _tokens(vocabulary: int, device: torch.device) -> Tensor:
    return _hash(torch.arange(vocabulary, dtype=torch.int32, device=device) ^ 0x68E31DA4)


def _hash(value: Tensor) -> Tensor:
    """Mix the bits into a new tensor (with the constants of the hash `lowbias32`)."""
    value = value ^ ((value >> 16) & 0xFFFF)
    value *= 0x7FEB352D
    value ^= (value >> 15) & 0x1FFFF
    value *= _signed(0x846CA68B)
    value ^= (value >> 16) & 0xFFFF
    return value


def _signed(number: int) -> int:
    """The lowest 32 bits, as a signed number."""
    return ((number & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


class Choice(LogitsProcessor):
    """Chooses each next token in the loop of transformers, and stores it.

    Attributes:
        ids: Per step, the token of each row.
        logprobs: Per step, its log-probability under the model's own distribution.
    """

    def __init__(
        self, seeds: Sequence[int], settings: Settings, prompts: Sequence[Sequence[int]] = ()
    ) -> None:
        self.ids: list[Tensor] = []
        self.logprobs: list[Tensor] = []
        self._seeds = seeds
        self._settings = settings
        self._prompts = prompts
        self._dice: Dice | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores that leave only the chosen token."""
        if self._dice is None:
            self._dice = self._throw(scores)
        chosen, own = choose(scores.float(), self._dice, self._settings.way)
        self.ids.append(chosen)
        self.logprobs.append(own)
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen[:, None], 0.0)

    def _throw(self, scores: Tensor) -> Dice:
        rows = len(scores)
        dice = Dice(rows, scores.shape[-1], scores.device)
        dice.set(list(range(rows)), self._seeds, [self._settings] * rows)
        if self._settings.repetition_penalty != 1:
            for row, prompt in enumerate(self._prompts):
                dice.see(row, prompt)
        return dice
