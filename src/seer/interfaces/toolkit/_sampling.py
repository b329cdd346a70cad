"""Choosing tokens: seeded for each row of a batch, so that a batch gives what single calls give.

`transformers` draws for a whole batch from one generator. Here a row has one number per step, drawn
ahead from its own seed, and takes the token at which its cumulated distribution passes that number.
The filters before that (temperature, top-k, top-p) are transformers' own.
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
        self, seeds: Sequence[int], steps: int, *, temperature: float, top_k: int, top_p: float
    ) -> None:
        self.ids: list[Tensor] = []
        self.logprobs: list[Tensor] = []
        self._filters: list[Any] = []
        self._draws: Tensor | None = None
        if temperature > 0:
            self._draws = torch.stack([_draws(seed, steps) for seed in seeds])
            if temperature != 1:
                self._filters.append(TemperatureLogitsWarper(temperature))
            if top_k > 0:
                self._filters.append(TopKLogitsWarper(top_k))
            if top_p < 1:
                self._filters.append(TopPLogitsWarper(top_p))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores that leave only the chosen token."""
        own = scores.float().log_softmax(-1)
        if self._draws is None:
            chosen = own.argmax(-1)
        else:
            filtered = scores.float()
            for one in self._filters:
                filtered = one(input_ids, filtered)
            chosen = self._draw(filtered.softmax(-1))
        self.ids.append(chosen)
        self.logprobs.append(own.gather(-1, chosen[:, None])[:, 0])
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen[:, None], 0.0)

    def _draw(self, probabilities: Tensor) -> Tensor:
        assert self._draws is not None
        heights = probabilities.cumsum(-1)
        # Scaled to the sum that rounding left, so that a draw never passes the end.
        drawn = self._draws[:, len(self.ids), None].to(heights.device) * heights[:, -1:]
        chosen = torch.searchsorted(heights, drawn, right=True)[:, 0]
        last = probabilities.shape[-1] - 1 - (probabilities.flip(-1) > 0).int().argmax(-1)
        return torch.minimum(chosen, last)


def _draws(seed: int, steps: int) -> Tensor:
    """The numbers of one row, the same whatever batch it is in."""
    return torch.rand(steps, generator=torch.Generator().manual_seed(seed))
