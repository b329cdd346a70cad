"""What training changed in a model's matrices: how much, and in which directions, as tokens."""

import re
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
_SINGULAR = 8
"""How many singular values `adapter_norms` gives."""
_COLUMNS = 16_384
"""Columns of a matrix that are widened to float64 at once."""


@dataclass(frozen=True)
class _Change:
    """The change of one matrix (outputs by inputs): whole, or as a product of two thin ones."""

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
        """Left vectors (outputs, n), singular values, at least n, and right vectors (inputs, n)."""
        if self.whole is not None:
            return _svd(self.whole, count)
        assert self.up is not None and self.down is not None
        # The SVD of a product of thin matrices is that of the small matrix between them.
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
    tokens by cosine similarity. Biases and norms are not included.

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
    measured = sorted(((change.norm(), change) for change in found), key=lambda pair: -pair[0])
    return [
        WeightChange(
            module=change.module,
            layer=_layer(change.module),
            norm=norm,
            relative=norm / max(change.base, 1e-12),
            directions=_directions(one, change, norm, directions, k),
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
        _weight(name, module, str(adapter))
        for name, module in chosen.net.named_modules()
        if hasattr(module, "lora_A")
        for adapter in module.lora_A
    ]
    if not found:
        raise ModelInputError(f"the adapter of {chosen.name!r} has no low-rank matrices (LoRA)")
    return sorted(found, key=lambda one: -one.norm)


def _adapter_changes(model: Model) -> Iterator[_Change]:
    """What an adapter changes: low-rank matrices, and modules that it replaces."""
    for name, module in model.net.named_modules():
        if _lora(module) and any(getattr(module, "use_dora", {}).values()):
            raise ModelInputError(f"the adapter of {model.name!r} is a DoRA, which has no low rank")
        adapters = _lora(module)
        active = [a for a in module.active_adapters if a in adapters] if adapters else []
        if active:
            ups = [module.lora_B[a].weight.double() * float(module.scaling[a]) for a in active]
            downs = [module.lora_A[a].weight.double() for a in active]
            base = module.get_base_layer()
            yield _Change(
                name,
                _norm(base.weight),
                up=torch.cat(ups, 1),
                down=torch.cat(downs),
                head=module is model.head,
            )
        replaced = getattr(module, "modules_to_save", None)
        if replaced is not None:
            for adapter in replaced:
                own, old = _matrix(replaced[adapter]), _matrix(module.original_module)
                if own is not None and old is not None:
                    tokens = own.shape[0] == model.vocabulary
                    yield _Change(name, _norm(old), whole=own - old, head=tokens)


def _lora(module: Any) -> Any:
    found = getattr(module, "lora_A", None)
    return () if found is None else found


def _changes(one: Model, other: Model) -> Iterator[_Change]:
    """The differences of all matrices of two models.

    Raises:
        ModelInputError: The models have different matrices.
    """
    own, others = dict(_matrices(one)), dict(_matrices(other))
    shapes = {name: m.shape for name, m in own.items()}
    if shapes != {name: m.shape for name, m in others.items()}:
        raise ModelInputError(
            f"{one.name!r} and {other.name!r} have different matrices, so their weights cannot be "
            "compared"
        )
    tables = {n for n, m in one.net.named_modules() if m is one.net.get_input_embeddings()}
    heads = {n for n, m in one.net.named_modules() if m is one.head}
    for name, matrix in own.items():
        yield _Change(
            name,
            _norm(others[name]),
            whole=matrix.float() - others[name].float().to(matrix.device),
            table=name in tables,
            head=name in heads,
        )


def _matrices(model: Model) -> Iterator[tuple[str, Tensor]]:
    """All linear maps and tables of a model by name, outputs by inputs, with adapters' shares."""
    seen: set[int] = set()
    for name, module in model.net.named_modules():
        if ".base_layer" in name or ".lora_" in name:
            continue
        matrix = _matrix(module)
        # A head that shares the table's weights is the same matrix.
        if matrix is not None and matrix.data_ptr() not in seen:
            seen.add(matrix.data_ptr())
            yield name, matrix


def _matrix(module: Any) -> Tensor | None:
    """A module's weights as outputs by inputs; None if it is not a linear map or table."""
    base: Any = module.get_base_layer() if hasattr(module, "get_base_layer") else module
    weight: Any = getattr(base, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    adapters = _lora(module)
    if adapters:
        for name in module.active_adapters:
            if name in adapters:
                weight = weight + module.get_delta_weight(name)
    weight = weight.detach()
    # GPT-2's Conv1D keeps inputs by outputs, and a table has a row for each of its inputs.
    across = type(base).__name__ == "Conv1D" or isinstance(base, torch.nn.Embedding)
    return weight.T if across else weight


def _weight(name: str, module: Any, adapter: str) -> AdapterWeight:
    down = module.lora_A[adapter].weight.double()
    up = module.lora_B[adapter].weight.double()
    # The singular values of a product of thin matrices are those of the small one between them.
    small = torch.linalg.qr(up).R @ torch.linalg.qr(down.T).R.T * float(module.scaling[adapter])
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
    # From the vectors themselves: more exact than the roots of the eigenvalues.
    values = torch.linalg.vector_norm(others, dim=0)
    others = others / values.clamp(min=1e-300)
    return (vectors, values, others) if wide is matrix else (others, values, vectors)


def _directions(
    model: Model, change: _Change, norm: float, count: int, k: int
) -> list[ChangeDirection]:
    left, values, right = change.svd(count)
    found: list[ChangeDirection] = []
    for i in range(min(count, len(values))):
        if float(values[i]) <= 1e-9 * norm:
            break
        output, given = left[:, i].float(), right[:, i].float()
        writes, reads = _written(model, change, output, k), _read(model, change, given, k)
        # The sign of a pair of singular vectors is free: the strongest token gets a positive score.
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


def _written(model: Model, change: _Change, output: Tensor, k: int) -> list[TokenScore]:
    if change.head:
        return _strongest(model, output, k)
    last = change.module.rpartition(".")[2]
    if len(output) != model.width or not (change.table or last in _WRITES):
        return []
    return _strongest(model, cosines(model.head.weight, output), k)


def _read(model: Model, change: _Change, given: Tensor, k: int) -> list[TokenScore]:
    if change.table:
        return _strongest(model, given, k)
    last = change.module.rpartition(".")[2]
    if change.head or len(given) != model.width or last in _WRITES:
        return []
    return _strongest(model, cosines(model.net.get_input_embeddings().weight, given), k)


def _strongest(model: Model, scores: Tensor, k: int) -> list[TokenScore]:
    """The tokens with the largest scores of either sign."""
    scores = scores[: model.vocabulary]
    places = scores.abs().topk(min(k, len(scores))).indices.tolist()
    return [TokenScore(model.token_text(i), i, float(scores[i])) for i in places]


def _layer(module: str) -> int | None:
    found = re.search(r"\.(?:layers|h|blocks)\.(\d+)\.", f".{module}.")
    return int(found[1]) + 1 if found else None
