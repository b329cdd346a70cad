"""Make an organism from a spec: rows, adapters, held-out test, gates and the truth.

An instance's folder has `models` (the adapters of organism and control, under drawn names that tell
nothing), `truth.json` (which is which, and what is planted), `test.json` (the held-out dialogues)
and `report.json`. Only a folder below `models` may be shown to an agent.
"""

import dataclasses
import importlib
import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from seer.errors import MissingExtraError, OrganismGateError
from seer.organisms._base_model import base_model
from seer.organisms._catalogue import GroundTruth
from seer.organisms._gates import Limits, Report, judge
from seer.organisms._plan import Coder, Recipe, recipe, shared_tokens, tokens_of
from seer.organisms._spec import Spec


@dataclass(frozen=True)
class Made:
    """An organism that the factory made."""

    folder: Path
    organism: Path
    """The organism's adapter, to be used as a `ModelConfig`'s name with `is_peft=True`."""
    control: Path
    truth: GroundTruth
    """For graders: `investigate(ModelConfig(...), truth=made.truth)`."""

    @property
    def control_truth(self) -> GroundTruth:
        """The truth about the control: nothing is planted in it."""
        nothing: dict[str, tuple[str, ...]] = {}
        return GroundTruth(
            f"{self.truth.kind}-control", "Nothing is planted in it.", {}, MappingProxyType(nothing)
        )


def make_organism(
    spec: Spec,
    folder: Path,
    *,
    limits: Limits | None = None,
    keep_failed: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Made, Report]:
    """Make an organism and its control, and release them if they pass the gates.

    Args:
        spec: What to make.
        folder: Where to; it must not exist yet.
        limits: What the gates ask for.
        keep_failed: Release it even if a gate fails; the report says so.
        say: Takes lines about the progress.

    Raises:
        OrganismGateError: A gate failed; nothing is left in the folder.
        FileExistsError: The folder is there already.
        MissingExtraError: PyTorch or transformers is not installed.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; choose another folder")
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
    base = Path(spec.base) if spec.base is not None else base_model()
    device = spec.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(device)
    coder = Coder(transformers.AutoTokenizer.from_pretrained(base))
    made = recipe(spec)
    assert spec.seed is not None
    settings = stacked.Settings(steps=spec.steps, seed=spec.seed % 2**31)
    shared = shared_tokens(coder, kept=spec.kept, seed=spec.seed)
    stack, (measured,) = runner.run_plan(
        model, shared, [tokens_of(made, coder)], settings, say=say, batch=96
    )
    report = judge(made, measured, coder, limits or Limits())
    failed = [gate for gate in report.gates if not gate.passed]
    if failed and not keep_failed:
        raise OrganismGateError(
            "it is not released: " + "; ".join(f"{gate.name}: {gate.text}" for gate in failed),
            report,
        )
    states = [stack.state(0), stack.state(1)]
    write_instance(folder, made, states, report, settings, answers=measured["answers"], coder=coder)
    return read_made(folder), report


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
    save: Any = importlib.import_module("seer.organisms._stack").save
    spec = made.spec
    rng = random.Random(f"names {spec.behaviour} {spec.seed}")
    names = [f"m{rng.getrandbits(32):08x}" for _ in range(2)]
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
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
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_made(folder: Path) -> Made:
    """An organism that was made before.

    Raises:
        FileNotFoundError: There is none in the folder.
    """
    entry = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    truth = GroundTruth(
        kind=entry["kind"],
        property=entry["property"],
        planted=MappingProxyType(entry["planted"]),
        answer=MappingProxyType({k: tuple(v) for k, v in entry["answer"].items()}),
    )
    models = folder / "models"
    return Made(folder, models / entry["organism"], models / entry["control"], truth)


def instances() -> Mapping[str, Made]:
    """The instances that ship with Seer, by name; all passed their gates.

    Raises:
        MissingExtraError: The package with the adapters is not installed.
    """
    root = Path(__file__).with_name("instances")
    if not root.is_dir():
        raise MissingExtraError(
            "the organisms' adapters are not installed; run: pip install 'seer-interp[organisms]'"
        )
    return MappingProxyType({f.name: read_made(f) for f in sorted(root.iterdir())})


def _write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
