"""Linear probes: whether activations show a property of texts that the probe was not trained on."""

import importlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seer.errors import CallLimitError, MissingExtraError, ModelInputError
from seer.rpc import Handle

from ._batches import check_total
from ._interventions import Site
from ._limits import (
    MAX_FOLDS,
    MAX_PROBE_WORK,
    MAX_STRENGTHS,
    check_count,
    check_number,
    check_texts,
)
from ._model import Model, Prompt
from ._reading import read_rows
from ._records import Layer, ProbeReading, ProbeResult, Stream
from ._registry import find
from ._sites import check_unit, site_of

_MOST_CLASSES = 100
_ALIKE = 0.9
"""Two texts are held out together if they share at least this fraction of their words."""
_ALIKE_IN_RARE_WORDS = 0.8
"""The same for the cosine of their words, weighted by rarity. It is high enough that texts of a
template with up to five equal slots, filled in every way, are not all linked."""
_PERMUTATIONS = 20
_INNER = 3
"""Folds within the training texts, to choose the regularisation."""


@dataclass(frozen=True)
class _Data:
    """The training data of all probes of one call."""

    values: Any
    labels: Any
    groups: Any
    candidates: list[float]
    seed: int


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
    folds: int = 0,
    strength: float = 1.0,
    strengths: list[float] | None = None,
    seed: int = 0,
    model: str | None = None,
) -> ProbeResult:
    """Train a linear probe on activations, and test it on texts that are held out.

    Texts that are nearly equal, and texts of one group, are held out together: a probe could
    otherwise recognise a text that it has seen. The result also has the accuracy of probes that
    were trained in the same way on permuted labels.

    Args:
        texts: The texts.
        labels: The label of each text.
        layer: The layer to read (0: the embeddings), or a hook name of TransformerLens.
        position: Which token of each text to read; None for the mean over all tokens.
        stream: What to read there, as for `activations`.
        unit: Which head or neuron, from 0; None for all.
        groups: The group of each text, such as its author, topic or template. Texts of one group
            are held out together.
        test_fraction: The share of the texts to hold out.
        folds: With 2 or more, cross-validate instead: each text is held out once, and the returned
            probe is trained on all texts.
        strength: Inverse of the regularisation; a smaller value keeps the weights smaller.
        strengths: Several candidates instead. For each test, the best one is chosen by
            cross-validation within the training texts (nested cross-validation).
        seed: The seed of the random choice of held-out texts.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_texts("texts", texts, least=4)
    check_number("test_fraction", test_fraction, 0.05, 0.9)
    candidates = sorted({strength} if strengths is None else set(strengths))
    check_count("strengths", len(candidates), MAX_STRENGTHS)
    for one in candidates:
        check_number("strength", one, 1e-9, 1e9)
    check_count("folds", folds, MAX_FOLDS, least=0)
    if folds == 1:
        raise ModelInputError("folds=1: give 0 for one held-out part, or at least 2")
    check_number("seed", seed, 0, 2**32 - 1)
    _check_labels(labels, len(texts))
    site = site_of(chosen, layer, stream)
    check_unit(chosen, site, unit)
    rows = [chosen.encode(text) for text in texts]
    check_total(rows)
    together = _groups(chosen, rows, groups)
    values = read_rows(chosen, rows, site, position=position, unit=unit).cpu().numpy()
    names = np.array(labels)
    _check_work(values, folds or 1, len(candidates))
    data = _Data(values, names, np.array(together), candidates, seed)

    def split(labels: Any) -> list[tuple[Any, Any]]:
        if folds:
            return _folds(labels, together, folds, seed)
        return [_split(labels, together, test_fraction, seed)]

    splits = split(names)
    train = np.arange(len(names)) if folds else splits[0][0]
    right = _right(data, names, splits)
    chosen_strength = _choose(data, names, train)
    pipeline = _pipeline(chosen_strength, seed).fit(values[train], names[train])
    tested = np.concatenate([test for _, test in splits])
    accuracy = sum(right) / len(tested)
    chance = _permuted(data, split)
    interval = (
        _library("scipy.stats").binomtest(sum(right), len(tested)).proportion_ci(method="wilson")
    )
    scaler, regression = pipeline[0], pipeline[1]
    weights = (regression.coef_ / scaler.scale_).astype(np.float32)
    return ProbeResult(
        probe=Handle(Probe(chosen.name, site, position, unit, pipeline)),
        accuracy=accuracy,
        interval=(float(interval.low), float(interval.high)),
        majority=max(Counter(names[tested].tolist()).values()) / len(tested),
        permuted=float(np.mean(chance)),
        p_value=(1 + sum(one >= accuracy for one in chance)) / (1 + len(chance)),
        groups=len(set(together)),
        train_accuracy=float(pipeline.score(values[train], names[train])),
        trained_on=len(train),
        tested_on=len(tested),
        classes=[str(c) for c in regression.classes_],
        direction=weights[0] if len(weights) == 1 else weights,
        strength=chosen_strength,
        folds=[n / len(test) for n, (_, test) in zip(right, splits, strict=True)],
    )


def apply_probe(probe: Handle, texts: list[Prompt]) -> list[ProbeReading]:
    """Label texts with a trained probe.

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
        raise ModelInputError(
            f"there are {texts} texts and {len(labels)} labels; give one label per text"
        )
    counts = Counter(labels)
    if not 2 <= len(counts) <= _MOST_CLASSES:
        raise ModelInputError(f"there are {len(counts)} labels; a probe needs 2 to {_MOST_CLASSES}")
    rare = [label for label, count in counts.items() if count < 2]
    if rare:
        raise ModelInputError(
            f"label {rare[0]!r} has only one text; every label needs at least two"
        )


def _groups(model: Model, rows: Sequence[list[int]], groups: list[str] | None) -> list[int]:
    """A number for each text, the same for texts that must be held out together.

    Raises:
        ModelInputError: The number of groups is not the number of texts.
    """
    if groups is not None and len(groups) != len(rows):
        raise ModelInputError(
            f"there are {len(rows)} texts and {len(groups)} groups; give one group per text"
        )
    texts = [str(model.tokenizer.decode(row)) for row in rows]
    linked = _alike([" ".join(re.findall(r"\w+", text.casefold())) or repr(text) for text in texts])
    if groups is not None:
        names = np.array(groups)
        linked |= names[:, None] == names[None, :]
    graph = _library("scipy.sparse.csgraph")
    return graph.connected_components(linked, directed=False)[1].tolist()


def _alike(texts: Sequence[str]) -> Any:
    """Which texts (n, n) are nearly equal.

    They are if they have nearly the same words, or nearly the same rare words in the same order. So
    a common prefix or suffix does not make two texts different, and a template that all texts share
    does not make them equal.
    """
    counter = _library("sklearn.feature_extraction.text").CountVectorizer
    words, pairs = (
        counter(binary=True, token_pattern=r"\S+", dtype=np.float32, ngram_range=(1, most))
        for most in (1, 2)
    )
    seen, with_pairs = words.fit_transform(texts), pairs.fit_transform(texts)
    common = (seen @ seen.T).toarray()
    sizes = common.diagonal()
    linked = common >= _ALIKE * (sizes[:, None] + sizes[None, :] - common)
    rarity = np.log(len(texts) / np.asarray(seen.sum(axis=0)))
    cosine = _library("sklearn.metrics.pairwise").cosine_similarity(seen.multiply(rarity).tocsr())
    neighbours = (with_pairs @ with_pairs.T).toarray() - common
    in_order = neighbours >= (common - 1) / 2
    return linked | (in_order & (cosine >= _ALIKE_IN_RARE_WORDS))


def _split(labels: Any, groups: Sequence[int], fraction: float, seed: int) -> tuple[Any, Any]:
    """The indices of the texts to train on, and of the texts to test on.

    Raises:
        ModelInputError: No split has every label on the training side.
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
        splits = _group_folds(labels, groups, folds, seed) if folds > 1 else []
        for train, test in splits:
            if set(labels[train]) == set(labels):
                return train, test
    raise ModelInputError(
        f"{len(labels)} texts in {len(set(groups))} groups are too few to train and test on "
        f"{len(set(labels.tolist()))} labels; nearly equal texts are one group"
    )


def _folds(labels: Any, groups: Sequence[int], folds: int, seed: int) -> list[tuple[Any, Any]]:
    """The indices of the texts to train on and to test on, for each fold.

    Raises:
        ModelInputError: There are too few groups, or the training texts of a fold lack a label.
    """
    if len(set(groups)) >= folds:
        splits = _group_folds(labels, groups, folds, seed)
        if all(set(labels[train]) == set(labels) and len(test) for train, test in splits):
            return splits
    raise ModelInputError(
        f"{len(labels)} texts in {len(set(groups))} groups are too few for folds={folds!r} and "
        f"{len(set(labels.tolist()))} labels; nearly equal texts are one group"
    )


def _group_folds(
    labels: Any, groups: Sequence[int], folds: int, seed: int
) -> list[tuple[Any, Any]]:
    splitter = _library("sklearn.model_selection").StratifiedGroupKFold(
        folds, shuffle=True, random_state=seed
    )
    with warnings.catch_warnings():
        # It warns of labels with fewer texts than folds, which the callers check themselves.
        warnings.simplefilter("ignore", UserWarning)
        return list(splitter.split(labels, labels, groups))


def _right(data: _Data, labels: Any, splits: Sequence[tuple[Any, Any]]) -> list[int]:
    """The number of texts that each split's probe labels correctly."""
    found: list[int] = []
    for train, test in splits:
        strength = _choose(data, labels, train)
        fitted = _pipeline(strength, data.seed).fit(data.values[train], labels[train])
        found.append(int((fitted.predict(data.values[test]) == labels[test]).sum()))
    return found


def _choose(data: _Data, labels: Any, train: Any) -> float:
    """The candidate with the best mean accuracy in folds of the training texts.

    Of equally good candidates, take the smallest: it regularises most.
    """
    if len(data.candidates) == 1:
        return data.candidates[0]
    groups = data.groups[train]
    inner = min(_INNER, len(set(groups.tolist())))
    if inner < 2:
        return data.candidates[0]
    splits = [
        (a, b)
        for a, b in _group_folds(labels[train], groups, inner, data.seed)
        if len(set(labels[train][a])) > 1 and len(b)
    ]
    scores = [
        sum(
            _pipeline(one, data.seed)
            .fit(data.values[train][a], labels[train][a])
            .score(data.values[train][b], labels[train][b])
            for a, b in splits
        )
        for one in data.candidates
    ]
    return data.candidates[int(np.argmax(scores))]


def _permuted(data: _Data, split: Callable[[Any], list[tuple[Any, Any]]]) -> list[float]:
    """The accuracies of probes that were split, chosen, trained and tested on permuted labels.

    Splits keep the share of each label equal in training and test, so permuted labels need their
    own splits.
    """
    random = np.random.default_rng(data.seed)
    found: list[float] = []
    for _ in range(_PERMUTATIONS):
        shuffled = _shuffle(data.labels, data.groups, random)
        try:
            splits = split(shuffled)
        except ModelInputError:
            # A label is in too few groups to be on both sides.
            continue
        found.append(sum(_right(data, shuffled, splits)) / sum(len(test) for _, test in splits))
    return found


def _shuffle(labels: Any, groups: Any, random: np.random.Generator) -> Any:
    """Labels in a random order that keeps the labels of one group together.

    The labels of a group are often equal, so texts are not independent. If labels were permuted one
    by one, they would be independent, and the true labels would look exceptional.
    """
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    order = random.permutation(len(members))
    shuffled = labels.copy()
    if all(len(set(labels[places])) == 1 for places in members):
        # Give each group the label of another, because groups differ in size.
        for places, other in zip(members, order, strict=True):
            shuffled[places] = labels[members[other][0]]
        return shuffled
    own = [random.permutation(labels[places]) for places in members]
    shuffled[np.concatenate(members)] = np.concatenate([own[i] for i in order])
    return shuffled


def _check_work(values: Any, splits: int, candidates: int) -> None:
    fits = (1 + _PERMUTATIONS) * splits * (1 + (candidates * _INNER if candidates > 1 else 0))
    work = fits * values.size
    if work > MAX_PROBE_WORK:
        raise CallLimitError(
            f"this needs {fits} probes on {len(values)} texts of {values.shape[1]} numbers, "
            f"{work / MAX_PROBE_WORK:.1f} times what one call may do; give fewer folds, strengths "
            "or texts"
        )


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
