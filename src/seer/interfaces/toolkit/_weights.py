"""What training changed in a model's matrices: how much, and in which directions, as tokens."""

import importlib
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seer.errors import ModelInputError

from ._limits import MAX_DIRECTIONS, MAX_MATRICES, MAX_TOP, check_count
from ._model import Model
from ._neighbours import cosines
from ._records import AdapterWeight, ChangeDirection, TokenScore, WeightChange
from ._registry import find

_WRITES = {
    *("o_proj", "c_proj", "out_proj", "dense", "wo"),
    *("down_proj", "fc2", "dense_4h_to_h", "fc_out"),
}
"""Names of the matrices whose output goes to the residual stream."""
_OF_ADAPTERS = (
    ".base_layer.",
    ".lora_",
    ".token_adapter.",
    ".original_module.",
    ".modules_to_save.",
)
"""Name parts of modules that belong to an adapter or were replaced by one."""
_SINGULAR = 8
"""The number of singular values that `adapter_norms` returns."""
_COLUMNS = 16_384
"""Columns of a matrix that are converted to float64 at once."""


@dataclass(frozen=True)
class _Change:
    """The change of one matrix (outputs by inputs): whole, or as a product of two thin matrices."""

    module: str
    base: float
    whole: Tensor | None = None
    up: Tensor | None = None
    down: Tensor | None = None
    table: bool = False
    """Whether the inputs are tokens: a table of embeddings."""
    head: bool = False
    """Whether the outputs are tokens: the matrix that makes the logits."""

    def norm(self) -> float:
        if self.whole is not None:
            return float(torch.linalg.matrix_norm(self.whole.double()))
        return float(torch.linalg.vector_norm(self.svd(1)[1]))

    def svd(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Left vectors (outputs, n), at least n singular values, and right vectors (inputs, n)."""
        if self.whole is not None:
            return _svd(self.whole, count)
        assert self.up is not None and self.down is not None
        # The SVD of a product of thin matrices follows from that of a small matrix between them.
        left, right = torch.linalg.qr(self.up.double()), torch.linalg.qr(self.down.double().T)
        u, values, v = torch.linalg.svd(left.R @ right.R.T)
        return left.Q @ u[:, :count], values, right.Q @ v.T[:, :count]


def diff_weights(
    first: str | None = None,
    second: str | None = None,
    *,
    matrices: int = 8,
    directions: int = 2,
    k: int = 8,
) -> list[WeightChange]:
    """Find the directions in which training changed a model's matrices, and read them as tokens.

    The change of each matrix (first minus second, or an adapter's update) is decomposed by SVD:
    along `input`, it adds `singular` times `output`. Directions in the residual stream are read as
    tokens by cosine similarity. Biases, norms and convolutions are not included. The matrices of
    experts are numbered.

    Args:
        first: A model; the first by default.
        second: Another model of the same shape; by default the first one's base (the first must
            have an adapter).
        matrices: How many matrices to give, those with the largest change first.
        directions: How many directions of each, those with the largest singular values first.
        k: How many tokens to give for each direction.
    """
    one = find(first)
    check_count("matrices", matrices, MAX_MATRICES)
    check_count("directions", directions, MAX_DIRECTIONS)
    check_count("k", k, min(MAX_TOP, one.vocabulary))
    if second is None and one.adapter is None:
        raise ModelInputError(f"{one.name!r} has no adapter; give the second model by name")
    other = one if second is None else find(second)
    for model in (one, other):
        if getattr(model.net, "is_quantized", False):
            raise ModelInputError(
                f"the weights of {model.name!r} are quantised; load the model without quantisation"
            )
    found = list(_adapter_changes(one) if second is None else _changes(one, other))
    words = _Words(_rows(one.net.get_input_embeddings()), _rows(one.head))
    measured = sorted(((change.norm(), change) for change in found), key=lambda pair: -pair[0])
    return [
        WeightChange(
            module=change.module,
            layer=_layer(change.module),
            norm=norm,
            relative=norm / max(change.base, 1e-12),
            directions=_directions(one, words, change, norm, directions, k),
        )
        for norm, change in measured[:matrices]
        if norm > 0
    ]


def adapter_norms(*, model: str | None = None) -> list[AdapterWeight]:
    """Measure how much an adapter (LoRA) changes each matrix, largest change first.

    `diff_weights` also gives the directions of the changes, read as tokens.

    Args:
        model: A model with an adapter; the first model by default.
    """
    chosen = find(model)
    if chosen.adapter is None:
        raise ModelInputError(f"{chosen.name!r} has no adapter")
    found = [
        _weight(name, module, adapter)
        for name, module in _adapted(chosen)
        for adapter in _active(module)
    ]
    if not found:
        raise ModelInputError(f"the adapter of {chosen.name!r} has no low-rank matrices (LoRA)")
    return sorted(found, key=lambda one: -one.norm)


def _adapter_changes(model: Model) -> Iterator[_Change]:
    """The changes of an adapter: low-rank matrices, single tokens, and replaced modules."""
    for name, module in _adapted(model):
        thin = [_thin(module, adapter) for adapter in _active(module)]
        yield _Change(
            name,
            _norm(module.get_base_layer().weight),
            up=torch.cat([up for up, _ in thin], 1),
            down=torch.cat([down for _, down in thin]),
            table=_is_table(module),
            head=module is model.head,
        )
    for name, module in model.net.named_modules():
        if _has_tokens(module):
            if module.tied_adapter is not None:
                continue  # a head that shares the table
            old = module.get_base_layer()
        elif getattr(module, "modules_to_save", None) is not None:
            old = module.original_module
        else:
            continue
        own, before = _matrix(module), _matrix(old)
        if own is not None and before is not None:
            yield _Change(
                name.removesuffix(".token_adapter"),
                _norm(before),
                whole=own.float() - before.float(),
                table=_is_table(old),
                head=module is model.head,
            )


def _adapted(model: Model) -> Iterator[tuple[str, Any]]:
    """The modules to which an adapter adds low-rank matrices, by name.

    Raises:
        ModelInputError: The adapter changes a module in another way.
    """
    layers: Any = importlib.import_module("peft.tuners.tuners_utils")
    for name, module in model.net.named_modules():
        if not isinstance(module, layers.BaseTunerLayer) or _has_tokens(module):
            continue
        if any(getattr(module, "use_dora", {}).values()):
            raise ModelInputError(f"the adapter of {model.name!r} is a DoRA, which has no low rank")
        if not _is_low_rank(module):
            kind = type(module).__module__.split(".")[-2]
            raise ModelInputError(
                f"the adapter of {model.name!r} ({kind}) changes {name!r} in another way than "
                "by a product of two thin matrices; merge it into its base, save the result, and "
                "compare that with the base by name"
            )
        if _active(module):
            yield name, module


def _is_low_rank(module: Any) -> bool:
    """Whether adapters add products of two thin matrices to a module's matrix, and nothing else."""
    lora: Any = importlib.import_module("peft.tuners.lora")
    # A wrapper of parameters adapts several matrices at once, such as the matrices of experts.
    if not isinstance(module, lora.LoraLayer) or hasattr(module, "parameter_name"):
        return False
    own: Any = module
    weight = getattr(own.get_base_layer(), "weight", None)
    return (
        isinstance(weight, Tensor)
        and weight.ndim == 2
        and not any(name in own.lora_variant for name in _active(own))
        and all(isinstance(down, torch.nn.Linear) for down in own.lora_A.values())
    )


def _active(module: Any) -> list[str]:
    """The low-rank adapters of a module that are in use."""
    own = {*module.lora_A, *module.lora_embedding_A}
    return [str(name) for name in module.active_adapters if name in own]


def _thin(module: Any, adapter: str) -> tuple[Tensor, Tensor]:
    """The matrices whose product an adapter adds: outputs by rank, and rank by inputs."""
    if adapter in module.lora_A:
        up, down = module.lora_B[adapter].weight, module.lora_A[adapter].weight
    else:
        up, down = module.lora_embedding_B[adapter], module.lora_embedding_A[adapter]
    return up.detach().double() * float(module.scaling[adapter]), down.detach().double()


def _is_table(module: Any) -> bool:
    """Whether a module is a table of embeddings, so that its inputs are tokens."""
    return isinstance(_base(module), torch.nn.Embedding)


def _has_tokens(module: Any) -> bool:
    """Whether an adapter replaces single tokens of this table."""
    return type(module).__name__ == "TrainableTokensLayer"


def _base(module: Any) -> Any:
    """The module itself, without the wrappers of peft."""
    module = getattr(module, "token_adapter", module)
    replaced = getattr(module, "modules_to_save", None)
    if replaced is not None:
        return next((replaced[a] for a in module.active_adapters if a in replaced), module)
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module


def _changes(one: Model, other: Model) -> Iterator[_Change]:
    """The differences of all matrices of two models.

    Raises:
        ModelInputError: The models have different matrices, or an adapter is not supported.
    """
    for model in (one, other):
        if model.adapter is not None:
            deque(_adapted(model), maxlen=0)
    own, others = ({n: (m, s) for n, m, s in _matrices(model)} for model in (one, other))
    shapes = {name: m.shape for name, (m, _) in own.items()}
    if shapes != {name: m.shape for name, (m, _) in others.items()}:
        raise ModelInputError(
            f"{one.name!r} and {other.name!r} have different matrices, so their weights cannot be "
            "compared"
        )
    tables = {n for n, m in one.net.named_modules() if m is one.net.get_input_embeddings()}
    heads = {n for n, m in one.net.named_modules() if m is one.head}
    for name, (matrix, shared) in own.items():
        before, shared_before = others[name]
        if shared and shared_before:
            continue
        yield _Change(
            name,
            _norm(before),
            whole=matrix.float() - before.float().to(matrix.device),
            table=name in tables,
            head=name in heads,
        )


def _matrices(model: Model) -> Iterator[tuple[str, Tensor, bool]]:
    """All linear maps and tables of a model, outputs by inputs, including the change by adapters.

    Yields the name, the matrix, and whether an earlier matrix shares its weights, as the table does
    with a tied head. Experts are numbered.
    """
    seen: set[int] = set()
    for name, module in model.net.named_modules():
        if any(part in f".{name}." for part in _OF_ADAPTERS):
            continue
        matrix = _matrix(module)
        if matrix is not None:
            raw: Tensor = _base(module).weight
            shared = raw.data_ptr() in seen and matrix.data_ptr() == raw.data_ptr()
            seen.add(raw.data_ptr())
            yield name, matrix, shared
        if isinstance(module, torch.nn.modules.conv._ConvNd):  # pyright: ignore[reportPrivateUsage]
            continue
        for own, stack in module.named_parameters(recurse=False):
            if stack.ndim == 3:
                across = bool(getattr(module, "is_transposed", False))
                for i, one in enumerate(stack.detach()):
                    yield f"{name}.{own}[{i}]", one.T if across else one, False


def _matrix(module: Any) -> Tensor | None:
    """A module's weights as outputs by inputs; None if it is not a linear map or table."""
    tokens: Any = getattr(module, "token_adapter", module)
    base = _base(module)
    weight: Any = getattr(base, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    if _has_tokens(tokens):
        weight = tokens.get_merged_weights(tokens.active_adapters)
    elif hasattr(module, "lora_A"):
        for name in _active(module):
            weight = weight + module.get_delta_weight(name)
    weight = weight.detach()
    # GPT-2's Conv1D stores inputs by outputs, and a table has one row per input.
    across = type(base).__name__ == "Conv1D" or isinstance(base, torch.nn.Embedding)
    return weight.T if across else weight


def _weight(name: str, module: Any, adapter: str) -> AdapterWeight:
    up, down = _thin(module, adapter)
    # The singular values of a product of thin matrices are those of a small matrix between them.
    small = torch.linalg.qr(up).R @ torch.linalg.qr(down.T).R.T
    values = torch.linalg.svdvals(small)
    norm = float(torch.linalg.vector_norm(values))
    base = _norm(module.get_base_layer().weight)
    return AdapterWeight(
        module=name,
        layer=_layer(name),
        rank=int(down.shape[0]),
        norm=norm,
        relative=norm / max(base, 1e-12),
        singular=values[:_SINGULAR].tolist(),
    )


def _norm(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().double()))


def _svd(matrix: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first singular vectors and values, by the eigenvectors of the smaller side."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    square = wide.new_zeros(len(wide), len(wide), dtype=torch.float64)
    for part in wide.split(_COLUMNS, 1):
        square += part.double() @ part.double().T
    vectors = torch.linalg.eigh(square).eigenvectors.flip(-1)[:, :count]
    others = torch.cat([part.double().T @ vectors for part in wide.split(_COLUMNS, 1)])
    # Computed from the vectors, which is more exact than the roots of the eigenvalues.
    values = torch.linalg.vector_norm(others, dim=0)
    others = others / values.clamp(min=1e-300)
    return (vectors, values, others) if wide is matrix else (others, values, vectors)


@dataclass(frozen=True)
class _Words:
    """The vectors of all tokens as inputs and as outputs, including the change by adapters."""

    given: Tensor
    written: Tensor


def _rows(module: Any) -> Tensor:
    """A table or head with a row for each token."""
    found = _matrix(module)
    if found is None:
        raise AssertionError("a model has a table and a head")
    return found.T if _is_table(module) else found


def _directions(
    model: Model, words: _Words, change: _Change, norm: float, count: int, k: int
) -> list[ChangeDirection]:
    left, values, right = change.svd(count)
    found: list[ChangeDirection] = []
    for i in range(min(count, len(values))):
        if float(values[i]) <= 1e-9 * norm:
            break
        output, given = left[:, i].float(), right[:, i].float()
        writes, reads = (
            _written(model, words, change, output, k),
            _read(model, words, change, given, k),
        )
        # The sign of singular vectors is arbitrary: give the strongest token a positive score.
        first = (writes or reads)[:1]
        turned = first[0].score < 0 if first else float(output[output.abs().argmax()]) < 0
        sign = -1.0 if turned else 1.0
        found.append(
            ChangeDirection(
                singular=float(values[i]),
                share=(float(values[i]) / norm) ** 2,
                input=(sign * given).cpu().numpy(),
                output=(sign * output).cpu().numpy(),
                reads=[TokenScore(t.token, t.id, sign * t.score) for t in reads],
                writes=[TokenScore(t.token, t.id, sign * t.score) for t in writes],
            )
        )
    return found


def _written(
    model: Model, words: _Words, change: _Change, output: Tensor, k: int
) -> list[TokenScore]:
    if change.head:
        return _strongest(model, output, k)
    last = _last(change.module)
    if len(output) != model.width or not (change.table or last in _WRITES):
        return []
    return _strongest(model, cosines(words.written, output), k)


def _read(model: Model, words: _Words, change: _Change, given: Tensor, k: int) -> list[TokenScore]:
    if change.table:
        return _strongest(model, given, k)
    last = _last(change.module)
    if change.head or len(given) != model.width or last in _WRITES:
        return []
    return _strongest(model, cosines(words.given, given), k)


def _last(module: str) -> str:
    """The last part of a module's name, without an expert's number."""
    return module.rpartition(".")[2].partition("[")[0]


def _strongest(model: Model, scores: Tensor, k: int) -> list[TokenScore]:
    """The tokens with the largest scores of either sign."""
    scores = scores[: model.vocabulary]
    places = scores.abs().topk(min(k, len(scores))).indices.tolist()
    return [TokenScore(model.token_text(i), i, float(scores[i])) for i in places]


def _layer(module: str) -> int | None:
    found = re.search(r"\.(?:layers|h|blocks)\.(\d+)\.", f".{module}.")
    return int(found[1]) + 1 if found else None
