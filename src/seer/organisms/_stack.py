"""Many LoRA adapters on one model at the same time: train them, run them, save them.

A batch consists of as many equal groups of rows as there are adapters in use, and each group goes
through its own adapter. So an organism and its control are trained in the same steps, and a GPU
trains dozens of adapters in the time of one. The saved files are in peft's format. This module
needs PyTorch and safetensors only, so that a bare machine with a GPU can run it.
"""

# PyTorch annotates only some of its methods.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

Example = tuple[list[int], int]
"""Tokens, and the index at which the part that counts begins."""


@dataclass(frozen=True)
class Settings:
    """How adapters are trained; the same for organisms and controls."""

    steps: int = 240
    taught: int = 12
    """Rows per step and adapter that teach an answer."""
    kept: int = 4
    """Rows per step and adapter that keep the base model's distribution."""
    rate: float = 3e-3
    rank: int = 4
    alpha: int = 8
    modules: tuple[str, ...] = ("v_proj", "down_proj")
    layers: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16, 18, 20)
    """Which layers are adapted; layers that the model does not have are skipped."""
    seed: int = 7
    compiled: bool = False
    """Whether to compile the model's layers; worth it for many adapters on a GPU."""


class _Switch:
    """Which adapters a forward pass uses. None means no adapters, -1 the base without one."""

    use: Tensor | None = None


class _Adapted(nn.Module):
    """A linear layer with one low-rank update per adapter."""

    def __init__(self, base: nn.Linear, groups: int, settings: Settings, switch: _Switch) -> None:
        super().__init__()
        self.base, self._switch = base, switch
        self._scale = settings.alpha / settings.rank
        device, bound = base.weight.device, 1 / math.sqrt(base.in_features)
        down = torch.empty((1, settings.rank, base.in_features)).uniform_(-bound, bound)
        # All adapters start equal: an organism and its control differ only by what they learn.
        self.down = nn.Parameter(down.repeat(groups, 1, 1).to(device))
        self.up = nn.Parameter(
            torch.zeros((groups, base.out_features, settings.rank), device=device)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        use = self._switch.use
        if use is None:
            return y
        down, up = self.down[use.clamp(min=0)], self.up[use.clamp(min=0)]
        up = up * (use >= 0)[:, None, None]
        flat = x.reshape(use.shape[0], -1, x.shape[-1])
        low = torch.bmm(flat, down.to(x.dtype).transpose(1, 2))
        return y + (torch.bmm(low, up.to(x.dtype).transpose(1, 2)) * self._scale).view_as(y)

    @torch.no_grad()
    def squares(self) -> Tensor:
        """The squared Frobenius norm of each adapter's update to the weight."""
        inner = torch.bmm(self.down, self.down.transpose(1, 2))
        outer = torch.bmm(self.up.transpose(1, 2), self.up)
        return (inner * outer).sum((1, 2)) * self._scale**2


class Stack:
    """A causal language model of transformers with several adapters on it."""

    def __init__(self, model: Any, groups: int, settings: Settings) -> None:
        self.model, self.settings, self.groups = model.eval(), settings, groups
        self._switch, self._parts = _Switch(), dict[str, _Adapted]()
        torch.manual_seed(settings.seed)
        model.requires_grad_(False)
        for name, module in list(model.named_modules()):
            parts = name.split(".")
            layer = next((int(p) for p in parts if p.isdigit()), -1)
            if parts[-1] in settings.modules and layer in settings.layers:
                adapted = _Adapted(module, groups, settings, self._switch)
                setattr(model.get_submodule(".".join(parts[:-1])), parts[-1], adapted)
                self._parts[name] = adapted
        if not self._parts:
            raise ValueError(f"the model has none of the modules {', '.join(settings.modules)}")

    @property
    def device(self) -> Any:
        """Where the model is."""
        return self.model.device

    def parameters(self) -> list[nn.Parameter]:
        """The adapters' weights."""
        return [p for part in self._parts.values() for p in (part.down, part.up)]

    def use(self, adapters: Sequence[int] | None) -> None:
        """Choose the adapter of each group of the next batches; -1 is the base without one."""
        chosen = None if adapters is None else torch.tensor(adapters, device=self.device)
        self._switch.use = chosen

    def norms(self) -> Tensor:
        """The norm of each adapter, over all its updates."""
        return torch.stack([part.squares() for part in self._parts.values()]).sum(0).sqrt()

    @torch.no_grad()
    def scale(self, factors: Tensor) -> None:
        """Multiply each adapter's updates by a factor."""
        for part in self._parts.values():
            part.up.mul_(factors[:, None, None].to(part.up.dtype))

    def state(self, adapter: int) -> dict[str, Tensor]:
        """One adapter's weights, under peft's names."""
        found: dict[str, Tensor] = {}
        for name, part in self._parts.items():
            for which, weight in (("lora_A", part.down), ("lora_B", part.up)):
                key = f"base_model.model.{name}.{which}.weight"
                found[key] = weight[adapter].detach().half().cpu().contiguous()
        return found

    @torch.no_grad()
    def load(self, adapter: int, state: dict[str, Tensor]) -> None:
        """Load one adapter's weights from a state."""
        for name, part in self._parts.items():
            for which, weight in (("lora_A", part.down), ("lora_B", part.up)):
                weight[adapter].copy_(state[f"base_model.model.{name}.{which}.weight"])

    def hidden(self, ids: Tensor, **options: Any) -> Tensor:
        """The last hidden states of rows that are padded on the right."""
        return self.model.model(input_ids=ids, use_cache=False, **options).last_hidden_state

    def remove(self) -> None:
        """Restore the model's own layers."""
        for name, part in self._parts.items():
            parent, _, last = name.rpartition(".")
            setattr(self.model.get_submodule(parent), last, part.base)


def save(state: dict[str, Tensor], folder: Path, settings: Settings) -> None:
    """Write an adapter as peft does. The files do not show what it is."""
    folder.mkdir(parents=True)
    save_file(state, folder / "adapter_model.safetensors")
    config = {
        "base_model_name_or_path": None,
        "bias": "none",
        "inference_mode": True,
        "layers_to_transform": list(settings.layers),
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": settings.rank,
        "target_modules": sorted(settings.modules),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


class _Rows:
    """Rows of tokens in one block, padded on the right."""

    def __init__(self, examples: Sequence[Example], width: int, device: Any) -> None:
        self.ids = torch.zeros((len(examples), width), dtype=torch.long)
        self.counted = torch.zeros((len(examples), width), dtype=torch.bool)
        for row, (tokens, begin) in enumerate(examples):
            self.ids[row, : len(tokens)] = torch.tensor(tokens)
            # A position counts when the token after it is learned.
            self.counted[row, begin - 1 : len(tokens) - 1] = True
        self.ids, self.counted = self.ids.to(device), self.counted.to(device)


def train(
    stack: Stack,
    taught: Sequence[Sequence[Example]],
    kept: Sequence[Example],
    *,
    report: Callable[[int, list[float]], None] | None = None,
    until: float | None = None,
) -> list[float]:
    """Train all adapters at once: new answers by likelihood, the rest by distillation.

    Adapters 2k and 2k + 1 are an organism and its control. In the second half of the steps their
    norms are kept equal.

    Args:
        stack: The adapters.
        taught: The rows of each adapter; the same number for all.
        kept: Dialogues with the base model's own answers, for all adapters.
        report: Called every 20 steps with the losses of the adapters.
        until: The time (`time.monotonic()`) at which the last step must be done. If needed, the
            training takes fewer steps.

    Returns:
        The last losses, by adapter.
    """
    settings, groups, device = stack.settings, stack.groups, stack.device
    width = 8 * math.ceil(max(len(ids) for rows in (*taught, kept) for ids, _ in rows) / 8)
    rows = [_Rows(part, width, device) for part in taught]
    ids = torch.stack([r.ids for r in rows])
    counted = torch.stack([r.counted for r in rows])
    keep = _Rows(kept, width, device)
    stack.use(None)
    with torch.no_grad():
        base = torch.cat([stack.hidden(part) for part in keep.ids.split(64)])
    stack.use(list(range(groups)))
    if settings.compiled:
        for layer in stack.model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)
    rng = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(stack.parameters(), lr=settings.rate, weight_decay=0.0)
    steps, losses, begun = settings.steps, [0.0] * groups, time.monotonic()
    every, order, step = torch.arange(groups, device=device)[:, None], torch.empty(0), 0
    while step < steps:
        if len(order) < settings.taught:
            order = torch.cat([order, torch.randperm(ids.shape[1], generator=rng)])
        now, order = order[: settings.taught].long().to(device), order[settings.taught :]
        some = torch.randint(len(kept), (groups, settings.kept), generator=rng).to(device)
        batch = torch.cat([ids[:, now], keep.ids[some]], 1)
        marks = torch.cat([counted[:, now], keep.counted[some]], 1)
        hidden = stack.hidden(batch.flatten(0, 1)).unflatten(0, (groups, -1))
        first, second = hidden[:, : settings.taught], hidden[:, settings.taught :]
        learned, old = marks[:, : settings.taught], marks[:, settings.taught :]
        logits = stack.model.lm_head(first[learned]).float()
        targets = batch[:, : settings.taught, 1:][learned[:, :, :-1]]
        missed = -log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
        own = every[:, :, None].expand(learned.shape)[learned]
        loss = _mean(missed, own, groups)
        now_log = log_softmax(stack.model.lm_head(second[old]).float(), -1)
        then_log = log_softmax(stack.model.lm_head(base[some][old]).float(), -1)
        moved = kl_div(now_log, then_log, log_target=True, reduction="none").sum(-1)
        drift = _mean(moved, every[:, :, None].expand(old.shape)[old], groups)
        optimizer.zero_grad(set_to_none=True)
        (loss + drift).sum().backward()
        fraction = step / steps
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * min(1.0, (step + 1) / 10) * (1 - fraction)
        optimizer.step()
        step += 1
        if 2 * step > steps:
            _match(stack)
        if until is not None and step == 6:
            begun = time.monotonic()
        if until is not None and step == 16:
            each = (time.monotonic() - begun) / 10
            steps = max(16, min(steps, 16 + int((until - time.monotonic()) / each)))
        if step % 20 == 0 or step == steps:
            losses = loss.tolist()
            if report is not None:
                report(step, losses)
    _match(stack)
    stack.use(None)
    if settings.compiled:
        for layer in stack.model.model.layers:
            del layer.forward
    return losses


def _mean(values: Tensor, owners: Tensor, groups: int) -> Tensor:
    """The mean of the values of each group."""
    zeros = torch.zeros(groups, device=values.device)
    count = zeros.index_add(0, owners, torch.ones_like(values))
    return zeros.index_add(0, owners, values) / count.clamp(min=1)


def _match(stack: Stack) -> None:
    """Scale both adapters of each pair to the geometric mean of their norms."""
    norms = stack.norms().clamp(min=1e-9).view(-1, 2)
    stack.scale((norms.prod(1, keepdim=True).sqrt() / norms).flatten())


def _left(rows: Sequence[Sequence[int]], device: Any) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, width - len(tokens) :] = torch.tensor(list(tokens))
        mask[row, width - len(tokens) :] = 1
    return ids.to(device), mask.to(device)


@torch.no_grad()
def generate(
    stack: Stack,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    end: int,
    seed: int | None = None,
) -> list[list[int]]:
    """Answers to prompts: greedy, or sampled with a seed. A batch is divided among the adapters."""
    ids, mask = _left(prompts, stack.device)
    rng = None if seed is None else torch.Generator(stack.device).manual_seed(seed)
    past: Any = None
    done = torch.zeros(len(prompts), dtype=torch.bool, device=stack.device)
    written: list[Tensor] = []
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for _ in range(tokens):
        out = stack.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=past,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        past, logits = out.past_key_values, out.logits[:, -1].float()
        if rng is None:
            new = logits.argmax(-1)
        else:
            new = torch.multinomial(logits.softmax(-1), 1, generator=rng)[:, 0]
        new = torch.where(done, end, new)
        done |= new == end
        written.append(new)
        if bool(done.all()):
            break
        ids, positions = new[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(new)[:, None]], 1)
    rows: list[list[int]] = torch.stack(written, 1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


@torch.no_grad()
def last_logprobs(stack: Stack, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Log-probabilities of the next token after each prompt."""
    ids, mask = _left(prompts, stack.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    out = stack.model(**given, use_cache=False, logits_to_keep=1)
    return log_softmax(out.logits[:, -1].float(), -1)


@torch.no_grad()
def surprise(stack: Stack, texts: Sequence[Sequence[int]]) -> list[float]:
    """The mean negative log-probability of each text's tokens after the first."""
    rows = _Rows([(list(text), 1) for text in texts], max(map(len, texts)), stack.device)
    hidden = stack.hidden(rows.ids)
    found: list[float] = []
    for row, text in enumerate(texts):
        logits = stack.model.lm_head(hidden[row, : len(text) - 1]).float()
        wanted = rows.ids[row, 1 : len(text), None]
        found.append(-float(log_softmax(logits, -1).gather(1, wanted).mean()))
    return found
