"""Shared by the tests of records: their own folder, without the developer's agent settings."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records go here."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("SEER_RUNS", str(folder))
    for name in ("SEER_AGENT", "SEER_REPLAY", "SEER_REPLAY_LIVE", "SEER_PROVIDER"):
        monkeypatch.delenv(name, raising=False)
    return folder
