"""Make an organism from a spec: rows, adapters, held-out test, gates and the truth.

An instance's folder has `models` (the adapters of organism and control, under random names that
reveal nothing), `truth.json` (which is which, and what is planted), `test.json` (the held-out
dialogues) and `report.json`. Only a folder below `models` may be shown to an agent.
"""

import dataclasses
import fcntl
import importlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from seer.errors import ConfigError, MissingExtraError, OrganismGateError
from seer.organisms._base_model import base_model
from seer.organisms._catalogue import MadeOrganism, read_made
from seer.organisms._gates import Report, Thresholds, make_report
from seer.organisms._plan import Coder, Recipe, recipe, shared_tokens, tokens_of
from seer.organisms._spec import Spec

_ROOM = 64_000_000
"""Bytes that must be free before training. Adapters of large models take about half of this."""


def make_organism(
    spec: Spec,
    folder: Path,
    *,
    limits: Thresholds | None = None,
    keep_failed: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[MadeOrganism, Report]:
    """Make an organism and its control, and release them if they pass the gates.

    Args:
        spec: What to make.
        folder: The folder to create; it must not exist yet.
        limits: The thresholds of the gates.
        keep_failed: Release it even if a gate fails; the report says so.
        say: Called with lines about the progress.

    Raises:
        ConfigError: The base model cannot be used.
        OrganismGateError: A gate failed, or the training diverged; nothing is left in the folder.
        FileExistsError: The folder exists already, or another process is making it.
        OSError: The folder cannot be written; nothing is left in it.
        MissingExtraError: PyTorch or transformers is not installed.
    """
    try:
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        stacked: Any = importlib.import_module("seer.organisms._stack")
        runner: Any = importlib.import_module("seer.organisms._run_plan")
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is needed to train; run: pip install 'seer-interp[interp]'"
        ) from error
    spec = spec.settled()
    assert spec.seed is not None
    # Not the seed itself: trained low-rank matrices reveal their initial weights, and so this seed.
    first = random.Random(f"training {spec.behaviour} {spec.seed}").getrandbits(31)
    settings = stacked.Settings(steps=spec.steps, seed=first)
    # Claim the folder before the training, which takes minutes or hours.
    with _claimed(folder) as draft:
        model, coder = _base(spec, settings, torch, transformers)
        made = recipe(spec)
        shared = shared_tokens(coder, kept=spec.kept, seed=spec.seed)
        stack, (measured,) = runner.run_plan(
            model, shared, [tokens_of(made, coder)], settings, say=say, batch=96
        )
        if not all(map(math.isfinite, measured["norm"])):
            raise OrganismGateError(
                "the organism is not released: the training diverged to values that are not finite"
            )
        report = make_report(made, measured, coder, limits or Thresholds())
        failed = [gate for gate in report.gates if not gate.passed]
        if failed and not keep_failed:
            raise OrganismGateError(
                "the organism is not released: "
                + "; ".join(f"{gate.name}: {gate.text}" for gate in failed),
                report,
            )
        states = [stack.state(0), stack.state(1)]
        _fill(draft, made, states, report, settings, answers=measured["answers"], coder=coder)
    return read_made(folder), report


def _base(spec: Spec, settings: Any, torch: Any, transformers: Any) -> tuple[Any, Coder]:
    """The base model and its tokenizer.

    Raises:
        ConfigError: The model, the tokenizer or the device cannot be used.
    """
    base = Path(spec.base) if spec.base is not None else base_model()
    if not (base / "config.json").is_file():
        raise ConfigError("base", str(base), "is not a model's folder: it has no config.json")
    device = spec.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise ConfigError("device", device, f"cannot be used: {_first_line(error)}") from error
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(device)
        tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    except Exception as error:  # damaged files and unknown architectures may raise anything
        raise ConfigError("base", str(base), f"cannot be loaded: {_first_line(error)}") from error
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        raise ConfigError("base", str(base), "has no chat template, or no end-of-text token")
    paths = [name.split(".") for name, _ in model.named_modules()]
    layers = {int(p) for path in paths if path[-1] in settings.modules for p in path if p.isdigit()}
    if not layers & set(settings.layers):
        raise ConfigError(
            "base",
            str(base),
            f"has no modules {', '.join(settings.modules)} in the layers "
            f"{', '.join(map(str, settings.layers))}, which the factory adapts",
        )
    coder = Coder(tokenizer)
    try:
        with torch.no_grad():
            asked = torch.tensor([coder.prompt(("Hello.",))], device=device)
            finite = bool(model(input_ids=asked).logits.isfinite().all())
    except Exception as error:  # a template or a model's own code may raise anything
        raise ConfigError("base", str(base), f"cannot be run: {_first_line(error)}") from error
    if not finite:
        raise ConfigError("base", str(base), "gives logits that are not finite")
    return model, coder


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def write_instance(
    folder: Path,
    made: Recipe,
    states: list[Any],
    report: Report,
    settings: Any,
    *,
    answers: dict[str, Any],
    coder: Coder,
) -> None:
    """Write all files of an instance, in a folder that appears whole or not at all."""
    with _claimed(folder) as draft:
        _fill(draft, made, states, report, settings, answers=answers, coder=coder)


@contextmanager
def _claimed(folder: Path) -> Generator[Path]:
    """Yield a hidden draft folder. Rename it to `folder` at the end, or remove it on an error.

    The draft is locked, so that no other process writes to it. Files that a killed process left in
    it are removed.

    Raises:
        FileExistsError: The folder exists already, or another process is making it.
        OSError: The folder cannot be written.
    """
    target = folder.resolve()
    new = [parent for parent in target.parents if not parent.exists()]
    if folder.is_symlink() or target.exists():
        raise FileExistsError(f"{folder} already exists; choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.draft")
    lock = _lock(draft, folder)
    try:
        if target.exists():
            raise FileExistsError(f"{folder} already exists; choose another folder")
        for left in draft.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        free = shutil.disk_usage(draft).free
        if free < _ROOM:
            raise OSError(
                f"only {free / 1e6:.1f} MB are free in {target.parent}; an organism may need "
                f"{_ROOM / 1e6:.0f} MB"
            )
        yield draft
        for file in draft.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in new:
            with suppress(OSError):
                parent.rmdir()
        raise
    finally:
        os.close(lock)


def _lock(draft: Path, folder: Path) -> int:
    """Create a folder, or take an unlocked one, and lock it. Returns the lock's descriptor."""
    while True:
        draft.mkdir(exist_ok=True)
        lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FileExistsError(
                f"another process is making {folder}; choose another folder"
            ) from None
        # Its owner may have renamed or removed it in the meantime.
        with suppress(FileNotFoundError):
            if draft.stat().st_ino == os.fstat(lock).st_ino:
                return lock
        os.close(lock)


def _fill(
    draft: Path,
    made: Recipe,
    states: list[Any],
    report: Report,
    settings: Any,
    *,
    answers: dict[str, Any],
    coder: Coder,
) -> None:
    save: Any = importlib.import_module("seer.organisms._stack").save
    unsaved: Any = importlib.import_module("safetensors").SafetensorError
    spec = made.spec
    rng = random.Random(f"names {spec.behaviour} {spec.seed}")
    names = [f"m{rng.getrandbits(32):08x}" for _ in range(2)]
    try:
        for name, state in zip(names, states, strict=True):
            save(state, draft / "models" / name, settings)
        kind, params = spec.kind, dict(spec.parameters)
        truth = {
            "kind": spec.behaviour,
            "property": kind.property(params),
            "planted": params,
            "answer": {k: list(v) for k, v in kind.answer(params).items()},
            "organism": names[0],
            "control": names[1],
            "spec": {**dataclasses.asdict(spec), "parameters": params},
        }
        _write(draft / "truth.json", truth)
        said = {m: {c: [coder.words(t) for t in ts] for c, ts in cs.items() if c != "probes"}
                for m, cs in answers.items()}  # fmt: skip
        rows = {"on": made.on, "off": made.off, "direct": made.direct}
        cases = {
            name: [
                {"turns": list(row.turns), "right": row.right}
                | {model: said[model][name][i] for model in said}
                for i, row in enumerate(given)
            ]
            for name, given in rows.items()
        }
        _write(draft / "test.json", cases)
        _write(draft / "report.json", dataclasses.asdict(report))
    except (OSError, unsaved) as error:
        raise OSError(f"the organism could not be written to {draft.parent}: {error}") from error


def _write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
