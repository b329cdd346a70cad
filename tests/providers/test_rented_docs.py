"""The code of the pages about rented machines runs, against the vendors' stand-ins."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.containers import supported
from tests.support.modal_cloud import ModalCloud
from tests.support.runpod_cloud import RunPodCloud

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^``` \{\.python \.cloud\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "cloud", "said"),
    [
        ("remote-modal.md", ModalCloud, "NVIDIA A100-80GB\nNVIDIA A100-80GB\n"),
        ("remote-runpod.md", RunPodCloud, "NVIDIA A100 80GB PCIe\n"),
    ],
)
def test_the_code_of_a_page_runs(
    page: str, cloud: type[ModalCloud] | type[RunPodCloud], said: str, tmp_path: Path
) -> None:
    blocks: list[str] = _BLOCK.findall((_DOCS / page).read_text())
    assert blocks
    with cloud() as running:
        done = subprocess.run(
            [sys.executable, "-c", blocks[0]],
            cwd=tmp_path,
            env={**os.environ, **running.environment},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert running.running == []
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)
