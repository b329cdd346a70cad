"""Nothing of a local machine is left, whichever process is killed at any moment."""

import asyncio
import random
from pathlib import Path

import pytest

from seer.isolation import BackendName
from tests.support.local_kills import SCENES, Ground, kill_and_look

pytestmark = pytest.mark.full

# The scene's controller ends by itself once its machine is lost, and its end may be seen first.
_REASONS = {
    "controller": ("its controller is gone",),
    "keeper": ("its keeper was killed by signal 9",),
    "steward": ("its first process ended", "its controller is gone"),
}


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("scene", list(SCENES))
def test_killing_leaves_nothing_behind(tmp_path: Path, scene: str, backend: BackendName) -> None:
    record = asyncio.run(kill_and_look(Ground(tmp_path), scene, backend))
    assert any(reason in record for reason in _REASONS.get(scene, ("its ",)))


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
def test_killing_the_controller_during_a_start_leaves_nothing_behind(
    tmp_path: Path, backend: BackendName
) -> None:
    for turn in range(6):
        moment = 0.15 + random.random() * 0.4
        asyncio.run(
            kill_and_look(Ground(tmp_path / str(turn)), "controller", backend, moment=moment)
        )
