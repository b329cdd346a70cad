"""Linear probes: whether a property can be read off activations, on texts not trained on."""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import importlib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seer.errors import MissingExtraError, ModelInputError
from seer.rpc import Handle

from ._batches import check_total
from ._inside import Site
from ._limits import check_number, check_texts
from ._model import Model, Prompt
from ._reading import read_rows
from ._records import Layer, ProbeReading, ProbeResult, Stream
from ._registry import find
from ._sites import check_unit, site_of

_MOST_CLASSES = 100
_ALIKE = 0.9
"""Share of their words that two texts must have in common to be held out together."""
_PERMUTATIONS = 20


@dataclass(frozen=True)
class Probe:
    """A trained probe, and where it reads."""

    model: str
    site: Site
    position: int | None
    unit: int | None
    pipeline: Any


def train_probe(
    texts: list[Prompt],
    labels: list[str],
    layer: Layer,
    *,
    position: int | None = -1,
    stream: Stream = "residual",
    unit: int | None = None,
    groups: list[str] | None = None,
    test_fraction: float = 0.25,
    strength: float = 1.0,
    seed: int = 0,
    model: str | None = None,
) -> ProbeResult:
    """Train a linear probe on activations, and test it on texts that are held out.

    Texts that are all but equal, and texts of one group, are held out together: a probe that has
    seen a text need not read anything off it. Beside the accuracy stands that of probes trained in
    the same way on permuted labels.

    Args:
        texts: The texts.
        labels: What each text is.
        layer: The layer to read (0: the embeddings), or a hook name of TransformerLens.
        position: Which token of each text to read; None for the mean over all tokens.
        stream: What to read there, as for `activations`.
        unit: Which head or neuron, from 0; None for all.
        groups: What belongs together, one name per text: the same author, topic or template.
        test_fraction: Which share of the texts to hold out.
        strength: Inverse of the regularization; smaller keeps the weights smaller.
        seed: Which texts are held out.
        model: Which model.
    """
    chosen = find(model)
    check_texts("texts", texts, least=4)
    check_number("test_fraction", test_fraction, 0.05, 0.9)
    check_number("strength", strength, 1e-9, 1e9)
    check_number("seed", seed, 0, 2**32 - 1)
    _check_labels(labels, len(texts))
    site = site_of(chosen, layer, stream)
    check_unit(chosen, site, unit)
    rows = [chosen.encode(text) for text in texts]
    check_total(rows)
    together = _groups(chosen, rows, groups)
    values = read_rows(chosen, rows, site, position=position, unit=unit).cpu().numpy()
    names = np.array(labels)
    train, test = _split(names, together, test_fraction, seed)
    pipeline = _pipeline(strength, seed).fit(values[train], names[train])
    right = int((pipeline.predict(values[test]) == names[test]).sum())
    chance = _permuted(values, names, together, (train, test), strength=strength, seed=seed)
    interval = _library("scipy.stats").binomtest(right, len(test)).proportion_ci(method="wilson")
    scaler, regression = pipeline[0], pipeline[1]
    weights = (regression.coef_ / scaler.scale_).astype(np.float32)
    return ProbeResult(
        probe=Handle(Probe(chosen.name, site, position, unit, pipeline)),
        accuracy=right / len(test),
        interval=(float(interval.low), float(interval.high)),
        majority=max(Counter(names[test].tolist()).values()) / len(test),
        permuted=float(np.mean(chance)),
        p_value=(1 + sum(one >= right / len(test) for one in chance)) / (1 + len(chance)),
        groups=len(set(together)),
        train_accuracy=float(pipeline.score(values[train], names[train])),
        trained_on=len(train),
        tested_on=len(test),
        classes=[str(c) for c in regression.classes_],
        direction=weights[0] if len(weights) == 1 else weights,
    )


def apply_probe(probe: Handle, texts: list[Prompt]) -> list[ProbeReading]:
    """What a probe says about texts.

    Args:
        probe: The `probe` of a `ProbeResult`.
        texts: The texts.
    """
    found = probe.value
    if not isinstance(found, Probe):
        raise ModelInputError("probe: give the `probe` of a ProbeResult that train_probe made here")
    chosen = find(found.model)
    check_texts("texts", texts)
    rows = [chosen.encode(text) for text in texts]
    check_total(rows)
    values = read_rows(chosen, rows, found.site, position=found.position, unit=found.unit)
    values = values.cpu().numpy()
    chances = found.pipeline.predict_proba(values)
    classes = found.pipeline[1].classes_
    return [ProbeReading(str(classes[int(row.argmax())]), float(row.max())) for row in chances]


def _check_labels(labels: list[str], texts: int) -> None:
    if len(labels) != texts:
        raise ModelInputError(f"there are {texts} texts and {len(labels)} labels")
    counts = Counter(labels)
    if not 2 <= len(counts) <= _MOST_CLASSES:
        raise ModelInputError(f"there are {len(counts)} labels; 2 to {_MOST_CLASSES} can be told")
    rare = [label for label, count in counts.items() if count < 2]
    if rare:
        raise ModelInputError(f"the label {rare[0]!r} has one text only; each needs two")


def _groups(model: Model, rows: Sequence[list[int]], groups: list[str] | None) -> list[int]:
    """A number for each text, the same for texts that must be held out together.

    Raises:
        ModelInputError: There is not one group for each text.
    """
    if groups is not None and len(groups) != len(rows):
        raise ModelInputError(f"there are {len(rows)} texts and {len(groups)} groups")
    texts = [str(model.tokenizer.decode(row)) for row in rows]
    words = _library("sklearn.feature_extraction.text").CountVectorizer(
        binary=True, token_pattern=r"\S+", dtype=np.float32
    )
    seen = words.fit_transform(texts)
    common = (seen @ seen.T).toarray()
    sizes = common.diagonal()
    linked = common >= _ALIKE * (sizes[:, None] + sizes[None, :] - common)
    if groups is not None:
        names = np.array(groups)
        linked |= names[:, None] == names[None, :]
    graph = _library("scipy.sparse.csgraph")
    return graph.connected_components(linked, directed=False)[1].tolist()


def _split(labels: Any, groups: Sequence[int], fraction: float, seed: int) -> tuple[Any, Any]:
    """The places of the texts to train on, and of those to test on.

    Raises:
        ModelInputError: Each side would not have every label.
    """
    selection = _library("sklearn.model_selection")
    if len(set(groups)) == len(groups):
        least = len(set(labels.tolist()))
        held_out = max(least, round(len(labels) * fraction))
        if len(labels) - held_out >= least:
            train, test = selection.train_test_split(
                np.arange(len(labels)), test_size=held_out, random_state=seed, stratify=labels
            )
            return train, test
    else:
        folds = min(max(2, round(1 / fraction)), len(set(groups)))
        splits: list[Any] = []
        if folds > 1:
            splitter = selection.StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
            with warnings.catch_warnings():
                # Of labels that have fewer texts than there are folds; that is checked below.
                warnings.simplefilter("ignore", UserWarning)
                splits = list(splitter.split(labels, labels, groups))
        for train, test in splits:
            if set(labels[train]) == set(labels):
                return train, test
    raise ModelInputError(
        f"{len(labels)} texts in {len(set(groups))} groups are too few to train and test on "
        f"{len(set(labels.tolist()))} labels; texts that are all but equal are one group"
    )


def _permuted(
    values: Any,
    labels: Any,
    groups: Sequence[int],
    split: tuple[Any, Any],
    *,
    strength: float,
    seed: int,
) -> list[float]:
    """The accuracies of probes that were trained and tested on permuted labels."""
    random = np.random.default_rng(seed)
    train, test = split
    found: list[float] = []
    order = list(dict.fromkeys(groups))
    for _ in range(_PERMUTATIONS):
        # Whole groups change places where each has one label, as such labels came about.
        of_group = {g: labels[i] for i, g in enumerate(groups)}
        if all(of_group[g] == labels[i] for i, g in enumerate(groups)):
            new = dict(zip(order, random.permutation([of_group[g] for g in order]), strict=True))
            shuffled = np.array([new[g] for g in groups])
        else:
            shuffled = random.permutation(labels)
        if len(set(shuffled[train])) < 2:
            continue
        fitted = _pipeline(strength, seed).fit(values[train], shuffled[train])
        found.append(float(fitted.score(values[test], shuffled[test])))
    return found


def _pipeline(strength: float, seed: int) -> Any:
    scaler = _library("sklearn.preprocessing").StandardScaler()
    regression = _library("sklearn.linear_model").LogisticRegression(
        C=strength, max_iter=2000, random_state=seed
    )
    return _library("sklearn.pipeline").make_pipeline(scaler, regression)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError(
            "probes need scikit-learn where the model runs; add 'scikit-learn' to "
            "SandboxConfig.python_packages"
        ) from None
