"""Choosing tokens: seeded for each row of a batch, so that a batch gives what single calls give.

`transformers` draws for a whole batch from one generator. Here every row has a generator of its
own, which gives each token a random number at each step, and the token with the highest probability
over its number is taken: a draw from the distribution that a small change of it (rounding in
another batch) changes rarely. The filters before that (temperature, top-k, top-p) are transformers'
own.
"""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


class Choice(LogitsProcessor):
    """Chooses each next token, and remembers what was chosen and how likely it was.

    Attributes:
        ids: Per step, the token of each row.
        logprobs: Per step, its log-probability under the model's own distribution.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        repetition_penalty: float = 1.0,
        prompts: Sequence[Sequence[int]] = (),
    ) -> None:
        self.ids: list[Tensor] = []
        self.logprobs: list[Tensor] = []
        self._filters: list[Any] = []
        self._seeds = seeds
        self._generators: list[torch.Generator] = []
        self._penalty = repetition_penalty
        self._prompts = prompts
        self._seen: Tensor | None = None
        self._greedy = temperature == 0
        if not self._greedy:
            if temperature != 1:
                self._filters.append(TemperatureLogitsWarper(temperature))
            if top_k > 0:
                self._filters.append(TopKLogitsWarper(top_k))
            if top_p < 1:
                self._filters.append(TopPLogitsWarper(top_p))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores that leave only the chosen token."""
        own = scores.float().log_softmax(-1)
        filtered = scores.float() if self._penalty == 1 else self._penalized(scores.float())
        if self._greedy:
            chosen = filtered.argmax(-1)
        else:
            for one in self._filters:
                filtered = one(input_ids, filtered)
            chosen = self._draw(filtered.log_softmax(-1))
        self.ids.append(chosen)
        self.logprobs.append(own.gather(-1, chosen[:, None])[:, 0])
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen[:, None], 0.0)

    def _penalized(self, scores: Tensor) -> Tensor:
        """Scores with those of tokens that a row has had already made worse.

        transformers' own way would count the padding of a batch as tokens of its rows.
        """
        if self._seen is None:
            self._seen = torch.zeros_like(scores, dtype=torch.bool)
            for row, prompt in zip(self._seen, self._prompts, strict=True):
                row[list(prompt)] = True
        else:
            self._seen.scatter_(-1, self.ids[-1][:, None], True)
        worse = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
        return torch.where(self._seen, worse, scores)

    def _draw(self, logprobs: Tensor) -> Tensor:
        if not self._generators:
            made = [torch.Generator(logprobs.device) for _ in self._seeds]
            self._generators = [g.manual_seed(s) for g, s in zip(made, self._seeds, strict=True)]
        numbers = torch.empty_like(logprobs)
        for row, generator in zip(numbers, self._generators, strict=True):
            row.exponential_(generator=generator)
        return (logprobs - numbers.clamp(min=1e-30).log()).argmax(-1)
