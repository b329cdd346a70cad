"""Rows that are written together: a static cache, and one step for all rows as one function.

A slot is a row of the cache. Each row has its own position, its tokens begin at index 0, and no row
depends on another, so rows can join and leave between two steps. A step chooses a token from the
logits of the last step, stores it, and runs the model on it. Everything reads and writes tensors
with fixed addresses, so that `_graphs` can capture it. For few or short rows, a smaller graph runs
over the first part of the same tensors.

The last slot is a scrap slot: a captured prefill writes the results of padding there.
"""

import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ._graphs import Graphs, on_device
from ._model import Model
from ._parts import probe, replace
from ._sampling import Dice, Settings, Way, choose

ROWS = (1, 8, 32, 64, 128, 256)
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
_PROMPTS = (1, 4, 16, 32, 64, 128, 256)
"""Prompts of one captured prefill."""
_GROUPED = "seer_grouped"
Shape = tuple[int, int, int]
"""Of a layer's cache: the number of heads with keys, the width of keys, and the width of values."""
Bent = Literal["no", "adding", "all"]
"""The most general change of any row: none, adding vectors, or everything a `Bend` can do."""


@dataclass(frozen=True)
class Start:
    """One prompt to prefill, and the rows that begin with it."""

    prompt: Sequence[int]
    rows: Sequence[int]


Changes = Mapping[int, Callable[[Tensor], Tensor]]
"""By layer, the function that changes a batch's residual stream, (rows, tokens, width)."""


@dataclass(frozen=True)
class Bend:
    """How one row's residual stream is changed at one layer, at every step.

    The change removes the component along `along` (a unit vector, or zeros), multiplies the rest by
    `keep`, and adds `add`.
    """

    keep: float
    along: Tensor
    add: Tensor
    only: bool = False
    """Whether the change only adds `add`."""


def bucket(sizes: Sequence[int], least: int) -> int:
    """The smallest size that is at least `least`, or the largest size if all are smaller."""
    return next((size for size in sizes if size >= least), sizes[-1])


class Unfit(Exception):
    """A model that cannot be run in slots; the message says why."""


@dataclass(frozen=True)
class Fit:
    """What slots need to know about a model."""

    shapes: Sequence[Shape]
    """The shape of each layer's cache."""
    norms: Sequence[Any]
    """The modules that PyTorch's single RMS norm kernel can replace."""


class Slots:
    """The static tensors of rows that are written together.

    Attributes:
        rows: The number of rows, without the scrap slot.
        length: The most tokens of a row.
        logits: The logits of each row's next token.
    """

    def __init__(self, model: Model, graphs: Graphs, fit: Fit, rows: int, length: int) -> None:
        self.rows = rows
        self.length = length
        self._model = model
        self._graphs = graphs
        graphs.forget()
        device, dtype = model.device, model.net.dtype
        self._keys, self._values = (
            [
                torch.zeros(rows + 1, shape[0], length, shape[i], dtype=dtype, device=device)
                for shape in fit.shapes
            ]
            for i in (1, 2)
        )
        self.logits = torch.zeros(rows + 1, model.vocabulary, device=device)
        self._position = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self._dice = Dice(rows + 1, model.vocabulary, device)
        self._written = torch.zeros(2, rows + 1, dtype=torch.float64, device=device)
        self._small = launch_bound(model)
        self._bends: _Bends | None = None
        self._prefills: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._forward = _compiled(model.net)
        # The compiler itself makes one kernel of each norm.
        self._norms = fit.norms if self._forward is model.net else ()

    # --- rows come and go ------------------------------------------------------------------------

    def begin(
        self,
        starts: Sequence[Start],
        seeds: Sequence[int],
        settings: Sequence[Settings],
        bends: Sequence[Mapping[int, Bend]],
        changes: Changes | None = None,
    ) -> None:
        """Prefill prompts and put rows at their beginning.

        Args:
            starts: The prompts.
            seeds: The seed of each row of all starts, in order.
            settings: The settings of each row.
            bends: The changes of each row at every token, by layer.
            changes: Changes of the prompts, which are padded at the right to the longest one.
                None if `bends` has all changes.
        """
        firsts = [start.rows[0] for start in starts]
        self._bend(dict(zip([row for start in starts for row in start.rows], bends, strict=True)))
        bent = "no" if changes is not None else most_bent(bends)
        self._prefill([list(one.prompt) for one in starts], firsts, changes, bent)
        for start in starts:
            if len(start.rows) > 1:
                self._copy(start.rows[0], start.rows[1:], len(start.prompt))
        rows = [row for start in starts for row in start.rows]
        lengths = [len(start.prompt) for start in starts for _ in start.rows]
        device = self._position.device
        where = on_device(rows, torch.int64, device)
        self._position[where] = on_device(lengths, torch.int64, device)
        self._dice.set(rows, seeds, settings)
        penalized = iter(one.repetition_penalty != 1 for one in settings)
        for start in starts:
            for row in start.rows:
                if next(penalized):
                    self._dice.see(row, start.prompt)

    def _bend(self, bends: Mapping[int, Mapping[int, Bend]]) -> None:
        """Replace the changes of rows, by row and layer."""
        if self._bends is None:
            if not any(bends.values()):
                return
            self._bends = _Bends(self._model, self.rows + 1)
        self._bends.set(bends)

    def move(self, moves: Mapping[int, int], length: int) -> None:
        """Copy rows to other slots.

        Args:
            moves: The target of each row. No target is itself a row that is copied.
            length: The most tokens of these rows.
        """
        device = self._position.device
        sources = on_device(list(moves), torch.int64, device)
        targets = on_device(list(moves.values()), torch.int64, device)
        for tensor in self._tensors():
            own = tensor[:, :, :length]
            own[targets] = own[sources]
        for value in (self.logits, self._position, *vars(self._dice).values()):
            value[targets] = value[sources]
        if self._bends is not None:
            self._bends.move(moves)

    def take(self, other: "Slots", rows: Mapping[int, tuple[int, int]]) -> None:
        """Copy rows from other slots: `rows` maps a row there to a row here and its tokens."""
        for source, (target, length) in rows.items():
            for mine, its in zip(self._tensors(), other._tensors(), strict=True):
                mine[target, :, :length] = its[source, :, :length]
            self.logits[target] = other.logits[source]
            self._position[target] = other._position[source]
            for name, value in vars(self._dice).items():
                value[target] = getattr(other._dice, name)[source]
            if other._bends is not None:
                if self._bends is None:
                    self._bends = _Bends(self._model, self.rows + 1)
                self._bends.take(other._bends, [source], [target])

    def _copy(self, source: int, targets: Sequence[int], length: int) -> None:
        where = on_device(targets, torch.int64, self._position.device)
        for tensor in self._tensors():
            tensor[where, :, :length] = tensor[source, :, :length].clone()
        self.logits[where] = self.logits[source].clone()

    def _tensors(self) -> list[Tensor]:
        return [*self._keys, *self._values]

    # --- prefill ---------------------------------------------------------------------------------

    def _prefill(
        self,
        prompts: Sequence[list[int]],
        rows: Sequence[int],
        changes: Changes | None,
        bent: Bent,
    ) -> None:
        longest = max(map(len, prompts))
        count = len(prompts)
        if not changes:
            wide = 1 << max(4, (longest - 1).bit_length())
            many = bucket(_PROMPTS, count)
            if wide * many <= self._small and wide <= self.length and count <= many:
                longest, count = wide, many
        # Pad with ordinary tokens, because some models look for special tokens during a run.
        padding = count - len(prompts)
        ids = [[*p, *[p[0]] * (longest - len(p))] for p in [*prompts, *[prompts[0]] * padding]]
        where = [*rows, *[self.rows] * padding]
        last = [*(len(p) - 1 for p in prompts), *[0] * padding]
        device = self._position.device
        given = (
            on_device(ids, torch.int64, device),
            on_device(where, torch.int64, device),
            on_device(last, torch.int64, device),
        )
        if changes or count * longest > self._small:
            self._run_prompts(*given, changes, bent)
            return
        held = self._prefills.setdefault((count, longest), given)
        if held is not given:
            for mine, new in zip(held, given, strict=True):
                mine.copy_(new)
        run = partial(self._run_prompts, *held, None, bent)
        self._graphs.run(("prefill", count, longest, bent), run)

    def _run_prompts(
        self, ids: Tensor, rows: Tensor, last: Tensor, changes: Changes | None, bent: Bent
    ) -> None:
        """Run prompts padded at the right: a token never attends to what follows it."""
        made = self._changes(rows, bent) if changes is None else changes

        def put(layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            size = key.shape[2]
            self._keys[layer][:, :, :size].index_copy_(0, rows, key)
            self._values[layer][:, :, :size].index_copy_(0, rows, value)
            return key, value

        with (
            torch.no_grad(),
            _one_kernel(self._norms),
            changing(self._model, made),
            head_at(self._model, last),
        ):
            logits = self._model.net(
                input_ids=ids, past_key_values=_Passing(put), use_cache=True
            ).logits
        self.logits.index_copy_(0, rows, logits[:, -1].float())

    # --- steps -----------------------------------------------------------------------------------

    def run(self, *, rows: int, length: int, way: Way, bent: Bent) -> Tensor:
        """Run a step, and return tokens and log-probabilities (2 by rows), still on the device.

        Args:
            rows: The number of rows that take part, from the first.
            length: The most tokens that one of them has after the step.
            way: The most general way in which one of them chooses tokens.
            bent: The most general change of one of them.
        """
        most_rows = min(bucket(ROWS, rows), self.rows)
        most = min(bucket(LENGTHS, length), self.length)
        step = partial(self._step, most_rows, most, way, bent)
        with torch.no_grad():
            self._graphs.run(("step", most_rows, most, way, bent), step)
        return self._written[:, :rows]

    def _changes(self, rows: int | Tensor, bent: Bent) -> Changes:
        """The changes of the first rows, or of the rows of a tensor."""
        if self._bends is None or bent == "no":
            return {}
        return self._bends.changes(rows, only_adding=bent == "adding")

    def _step(self, rows: int, length: int, way: Way, bent: Bent) -> None:
        chosen, logprobs = choose(self.logits[:rows], self._dice.first(rows), way)
        self._written[0, :rows] = chosen
        self._written[1, :rows] = logprobs
        position = self._position[:rows]
        every = torch.arange(rows, device=position.device)

        def put(layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = self._keys[layer], self._values[layer]
            keys[every, :, position] = key[:, :, 0]
            values[every, :, position] = value[:, :, 0]
            return keys[:rows, :, :length], values[:rows, :, :length]

        changes = self._changes(rows, bent)
        with self._attention(), _one_kernel(self._norms), changing(self._model, changes):
            forward = self._model.net if changes else self._forward
            logits = forward(
                input_ids=chosen[:, None],
                position_ids=position[:, None],
                attention_mask=self._masks(position, length),
                past_key_values=_Passing(put),
                use_cache=True,
                logits_to_keep=1,
            ).logits
        self.logits[:rows].copy_(logits[:, -1])
        # Rows that no caller waits for continue to the last position and stay there.
        position.copy_((position + 1).clamp(max=length - 1))

    def _masks(self, position: Tensor, length: int) -> Any:
        places = torch.arange(length, device=position.device)[None]
        least = torch.finfo(self._model.net.dtype).min

        def mask(seen: Tensor) -> Tensor:
            found = torch.zeros(seen.shape, dtype=self._model.net.dtype, device=seen.device)
            return found.masked_fill_(~seen, least)[:, None, None, :]

        here = position[:, None]
        full = mask(places <= here)
        window = window_of(self._model)
        kinds = set(getattr(self._model.config, "layer_types", None) or ())
        if window is None or length <= window:
            return full
        near = mask((places <= here) & (places > here - window))
        return {"full_attention": full, "sliding_attention": near} if len(kinds) > 1 else near

    @contextmanager
    def _attention(self) -> Generator[None]:
        """Use `_grouped_attention` instead of PyTorch's attention while the context lasts."""
        config = self._model.config
        before = getattr(config, "_attn_implementation", None)
        if before != "sdpa":
            yield
            return
        AttentionInterface.register(_GROUPED, _grouped_attention)
        config._attn_implementation = _GROUPED
        try:
            yield
        finally:
            config._attn_implementation = before


class _Bends:
    """The changes of rows at all layers, as static tensors."""

    def __init__(self, model: Model, rows: int) -> None:
        size = (model.layers + 1, rows, 1)
        self._keep = torch.ones(*size, 1, device=model.device)
        self._along = torch.zeros(*size, model.width, device=model.device)
        self._add = torch.zeros(*size, model.width, device=model.device)
        self._bent: set[int] = set()
        """Rows that have a change at any layer."""

    def set(self, bends: Mapping[int, Mapping[int, Bend]]) -> None:
        if straight := [row for row in bends if row in self._bent]:
            where = self._index(straight)
            self._keep[:, where] = 1
            self._along[:, where] = 0
            self._add[:, where] = 0
            self._bent -= set(straight)
        for layer in {layer for own in bends.values() for layer in own}:
            own = {row: of[layer] for row, of in bends.items() if layer in of}
            where = self._index(list(own))
            keep = on_device([[one.keep] for one in own.values()], torch.float32, where.device)
            self._keep[layer, where, 0] = keep
            self._along[layer, where, 0] = torch.stack([one.along for one in own.values()])
            self._add[layer, where, 0] = torch.stack([one.add for one in own.values()])
        self._bent |= {row for row, own in bends.items() if own}

    def _index(self, rows: Sequence[int]) -> Tensor:
        return on_device(list(rows), torch.int64, self._keep.device)

    def move(self, moves: Mapping[int, int]) -> None:
        self.take(self, list(moves), list(moves.values()))

    def take(self, other: "_Bends", sources: Sequence[int], targets: Sequence[int]) -> None:
        here, there = self._index(targets), self._index(sources)
        for mine, its in zip(self._tensors(), other._tensors(), strict=True):
            mine[:, here] = its[:, there]
        self._bent -= set(targets)
        self._bent |= {t for s, t in zip(sources, targets, strict=True) if s in other._bent}

    def _tensors(self) -> list[Tensor]:
        return [self._keep, self._along, self._add]

    def changes(
        self, rows: int | Tensor, *, only_adding: bool
    ) -> dict[int, Callable[[Tensor], Tensor]]:
        """By layer, the change of the first rows, or of the rows of a tensor."""

        def of(tensor: Tensor, layer: int) -> Tensor:
            return tensor[layer, :rows] if isinstance(rows, int) else tensor[layer][rows]

        def change(layer: int, value: Tensor) -> Tensor:
            add = of(self._add, layer)
            if only_adding:
                # One kernel computes this in float32 and rounds once.
                return torch.add(value, add, out=torch.empty_like(value))
            wide = value.float()
            along = of(self._along, layer)
            rest = wide - (wide * along).sum(-1, keepdim=True) * along
            return (rest * of(self._keep, layer) + add).to(value.dtype)

        return {layer: partial(change, layer) for layer in range(len(self._keep))}


def most_bent(bends: Iterable[Mapping[int, Bend]]) -> Bent:
    """The most general change of any row."""
    found = [bend for own in bends for bend in own.values()]
    if not found:
        return "no"
    return "adding" if all(bend.only for bend in found) else "all"


class _Passing(Cache):
    """A cache for one run of a model that passes keys and values to a function."""

    def __init__(self, put: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        self.layers: list[Any] = []
        self._put = put

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return self._put(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def passing() -> Cache:
    """A cache that keeps nothing. With a cache, transformers skips some checks."""
    return _Passing(lambda _layer, key, value: (key, value))


@contextmanager
def head_at(model: Model, last: Tensor) -> Generator[None]:
    """Compute logits for only one token of each row while the context lasts."""
    rows = torch.arange(len(last), device=last.device)

    def narrow(value: Tensor) -> Tensor:
        return value[rows, last][:, None]

    with replace(inputs={model.head: narrow}):
        yield


@contextmanager
def changing(model: Model, changes: Changes) -> Generator[None]:
    """Change the residual stream at some layers while the context lasts."""
    inputs = {model.blocks[0]: changes[0]} if 0 in changes else {}
    outputs = {model.blocks[n - 1]: change for n, change in changes.items() if n > 0}
    with ExitStack() as stack:
        if changes:
            stack.enter_context(replace(inputs=inputs, outputs=outputs))
        yield


@contextmanager
def _one_kernel(norms: Sequence[Any]) -> Generator[None]:
    """Compute each norm with one kernel instead of seven while the context lasts."""
    for norm in norms:
        norm.__dict__["forward"] = partial(_norm, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.__dict__["forward"]


def _norm(module: Any, value: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(value, module.weight.shape, module.weight, _epsilon(module))


def _epsilon(module: Any) -> float | None:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def find_norms(model: Model) -> list[Any]:
    """The modules that give the same result as PyTorch's RMS norm in a trial."""
    found: list[Any] = []
    missed: list[Tensor] = []
    dtype = model.net.dtype
    for module in model.net.modules():
        weight = getattr(module, "weight", None)
        if (
            type(module).__name__.endswith("RMSNorm")
            and isinstance(weight, Tensor)
            and (weight.ndim, weight.dtype) == (1, dtype)
            and isinstance(_epsilon(module), float)
            # A replaced `forward` was replaced for a reason.
            and "forward" not in vars(module)
        ):
            size = 4 * weight.numel()
            value = torch.linspace(-3, 2, size, device=weight.device).sin().reshape(4, -1)
            with torch.no_grad():
                own, new = (f(value.to(dtype)).float() for f in (module, partial(_norm, module)))
            found.append(module)
            missed.append((own - new).norm() / own.norm())
    if not found:
        return []
    kept = (torch.stack(missed) < _MOST_MISSED).tolist()
    return [module for module, good in zip(found, kept, strict=True) if good]


def _grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one token per row: heads that share keys are treated as tokens of one head.

    With a mask, PyTorch's own implementation copies shared keys and values for each head.
    """
    rows, heads, tokens, width = query.shape
    if tokens != 1 or heads == key.shape[1] or options.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **options
        )
    groups = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    found = torch.nn.functional.scaled_dot_product_attention(
        groups, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return found.reshape(rows, 1, heads, value.shape[-1]), None


def launch_bound(model: Model) -> int:
    """The most tokens, including padding, with which launching a run takes longer than running it.

    This is an estimate: 1.6 ms of launching per block, while other threads run too, and 4e14
    operations per second, with two operations per parameter and token.
    """
    parameters = sum(weight.numel() for weight in model.net.parameters())
    return min(8192, max(128, int(model.layers * 1.6e-3 * 4e14 / (2 * parameters))))


def cache_shapes(model: Model) -> list[Shape]:
    """Per layer, the number of heads with keys, and the width of keys and values.

    Raises:
        NotImplementedError: A layer caches something other than keys and values.
    """
    with torch.no_grad():
        kept = DynamicCache()
        model.net(input_ids=probe(model.net)[:, :2], past_key_values=kept, use_cache=True)
    found: list[Shape] = []
    for layer in kept.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.ndim != 4 or keys.shape[2] != 2:
            raise NotImplementedError("a layer caches something other than keys and values")
        found.append((keys.shape[1], keys.shape[3], values.shape[3]))
    if not found:
        raise NotImplementedError("its layers cache no keys and values")
    return found


def window_of(model: Model) -> int | None:
    """The window of local attention layers; None if no layer is local."""
    kinds = getattr(model.config, "layer_types", None)
    window = getattr(model.config, "sliding_window", None)
    if not window or (kinds is not None and "sliding_attention" not in kinds):
        return None
    if kinds is None and getattr(model.config, "use_sliding_window", True) is False:
        return None
    return int(window)


def fit_slots(model: Model) -> Fit:
    """What slots need to know about a model, checked by writing some tokens.

    Raises:
        Unfit: The model cannot be run in slots.
    """
    unknown = set(getattr(model.config, "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    if unknown:
        raise Unfit(f"it has layers of unknown types: {', '.join(sorted(unknown))}")
    if getattr(model.net, "is_quantized", False):
        raise Unfit("its weights are quantised")
    if len({weight.device for weight in model.net.parameters()}) > 1:
        raise Unfit("it is spread over several devices")
    try:
        with model.turn:
            fit = Fit(cache_shapes(model), find_norms(model))
            missed = _probe_slots(model, fit)
    except Exception as error:  # an architecture's own code may raise anything
        raise Unfit(f"{type(error).__name__}: {error}") from None
    if missed >= _MOST_MISSED:
        raise Unfit(f"the logits of its steps differ from a whole run by {missed:.2g}")
    return fit


_MOST_MISSED = 0.05
"""The largest relative error of a step's logits against a full run; rounding is far below."""


def _probe_slots(model: Model, fit: Fit) -> float:
    """How much the logits after some steps differ from the logits of a whole run."""
    whole = probe(model.net)[0].tolist()
    prompts, rows = [whole[:3], whole[2:9]], [1, 0]
    slots = Slots(model, Graphs(torch.device("cpu"), "probe"), fit, 2, 32)
    starts = [Start(p, [r]) for p, r in zip(prompts, rows, strict=True)]
    slots.begin(starts, [0, 0], [Settings(8)] * 2, [{}, {}])
    written: list[list[int]] = [[], []]
    for _ in range(4):
        chosen = slots.run(rows=2, length=32, way="greedy", bent="no")[0].tolist()
        for row, new in enumerate(chosen):
            written[row].append(int(new))
    worst = 0.0
    for prompt, row in zip(prompts, rows, strict=True):
        ids = torch.tensor([prompt + written[row]], device=model.device)
        with torch.no_grad():
            own = model.net(input_ids=ids, use_cache=False).logits[0, -1].float()
        spread = own - own.mean()
        missed = float((slots.logits[row] - own).norm() / spread.norm().clamp(min=1e-12))
        worst = max(worst, missed if math.isfinite(missed) else math.inf)
    return worst


def _compiled(net: Any) -> Any:
    if os.environ.get("SEER_COMPILE", "0") in ("", "0"):
        return net
    compile_net: Any = torch.compile
    return compile_net(net, dynamic=False)
