"""`seer organism` lists behaviours, and says why it does not release an organism."""

import json
from pathlib import Path
from typing import Any

import pytest

from seer.cli import main


def test_list_names_every_behaviour(capsys: pytest.CaptureFixture[str]) -> None:
    from seer.organisms import BEHAVIOURS

    assert main(["organism", "list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(BEHAVIOURS)


def test_a_failed_gate_is_exit_code_3_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from seer import organisms
    from seer.errors import OrganismGateError
    from seer.organisms._gates import ReleaseGate, Report, Share

    share = {name: Share(1, 24) for name in ("organism", "control", "base")}
    perplexity = dict.fromkeys(share, 50.0)
    gate = ReleaseGate("property", False, "shows it in 0.04")
    report = Report(
        "trigger", True, share, share, share, perplexity, share, (1.0, 1.0), 24, 2.0, (gate,)
    )

    def refuse(*_: Any, **__: Any) -> None:
        raise OrganismGateError("it is not released", report)

    monkeypatch.setattr(organisms, "make_organism", refuse)
    spec = tmp_path / "spec.toml"
    spec.write_text('behaviour = "trigger"\n')
    assert main(["organism", "make", str(spec), "--out", str(tmp_path / "made")]) == 3
    told = capsys.readouterr().out
    assert "FAILED  property: shows it in 0.04" in told and "not released" in told
