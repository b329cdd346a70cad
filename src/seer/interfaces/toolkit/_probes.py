"""Linear probes: whether a property can be read off activations, on texts not trained on."""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import importlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from seer.errors import MissingExtraError, ModelInputError
from seer.rpc import Handle

from ._batches import check_total
from ._inside import Site
from ._limits import check_number, check_texts
from ._model import Prompt
from ._reading import read_rows
from ._records import ProbeReading, ProbeResult, Stream
from ._registry import find

_MOST_CLASSES = 100


@dataclass(frozen=True)
class Probe:
    """A trained probe, and where it reads."""

    model: str
    site: Site
    position: int | None
    pipeline: Any


def train_probe(
    texts: list[Prompt],
    labels: list[str],
    layer: int,
    *,
    position: int | None = -1,
    stream: Stream = "residual",
    test_fraction: float = 0.25,
    strength: float = 1.0,
    seed: int = 0,
    model: str | None = None,
) -> ProbeResult:
    """Train a linear probe on activations, and test it on texts that are held out.

    Args:
        texts: The texts.
        labels: What each text is.
        layer: After which block to read (0: the embeddings).
        position: At which token of each text; None for the mean over all.
        stream: What to read there.
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
    counts = _count_labels(labels, len(texts))
    site = Site(chosen.check_layer(layer, least=0 if stream == "residual" else 1), stream)
    rows = [chosen.encode(text) for text in texts]
    check_total(rows)
    held_out = max(len(counts), round(len(texts) * test_fraction))
    if len(texts) - held_out < len(counts):
        raise ModelInputError(
            f"{len(texts)} texts are too few to train and test on {len(counts)} labels"
        )
    values = read_rows(chosen, rows, site, position=position).cpu().numpy()
    selection = _library("sklearn.model_selection")
    train_x, test_x, train_y, test_y = selection.train_test_split(
        values, np.array(labels), test_size=held_out, random_state=seed, stratify=labels
    )
    pipeline = _pipeline(strength, seed)
    pipeline.fit(train_x, train_y)
    right = int((pipeline.predict(test_x) == test_y).sum())
    interval = _library("scipy.stats").binomtest(right, len(test_y)).proportion_ci(method="wilson")
    scaler, regression = pipeline[0], pipeline[1]
    weights = (regression.coef_ / scaler.scale_).astype(np.float32)
    return ProbeResult(
        probe=Handle(Probe(chosen.name, site, position, pipeline)),
        accuracy=right / len(test_y),
        interval=(float(interval.low), float(interval.high)),
        majority=max(Counter(test_y.tolist()).values()) / len(test_y),
        train_accuracy=float(pipeline.score(train_x, train_y)),
        trained_on=len(train_y),
        tested_on=len(test_y),
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
    values = read_rows(chosen, rows, found.site, position=found.position).cpu().numpy()
    chances = found.pipeline.predict_proba(values)
    classes = found.pipeline[1].classes_
    return [ProbeReading(str(classes[int(row.argmax())]), float(row.max())) for row in chances]


def _count_labels(labels: list[str], texts: int) -> Counter[str]:
    if len(labels) != texts:
        raise ModelInputError(f"there are {texts} texts and {len(labels)} labels")
    counts = Counter(labels)
    if not 2 <= len(counts) <= _MOST_CLASSES:
        raise ModelInputError(f"there are {len(counts)} labels; 2 to {_MOST_CLASSES} can be told")
    rare = [label for label, count in counts.items() if count < 2]
    if rare:
        raise ModelInputError(f"the label {rare[0]!r} has one text only; each needs two")
    return counts


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
