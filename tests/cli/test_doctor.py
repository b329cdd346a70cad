"""`seer doctor` names a command for each thing that is missing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from seer.cli import main

Found = Callable[[], dict[str, dict[str, str]]]


@pytest.fixture
def found(capsys: pytest.CaptureFixture[str]) -> Found:
    def look() -> dict[str, dict[str, str]]:
        main(["doctor", "--json"])
        return {row["what"]: row for row in json.loads(capsys.readouterr().out)}

    return look


def without_torch(monkeypatch: pytest.MonkeyPatch, python: Path | None) -> None:
    monkeypatch.setattr("seer.cli._demo_environment.has_model_packages", lambda: False)
    monkeypatch.setattr("seer.cli._demo_environment.interpreter", lambda: python)


def test_a_machine_without_torch_is_told_of_the_demo(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_torch(monkeypatch, None)
    models = found()["models"]
    assert models["state"] == "missing"
    assert models["fix"] == 'run `seer demo` once, or pip install "seer-interp[interp]"'


def test_the_demos_environment_is_enough_for_models(
    found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_torch(monkeypatch, tmp_path)
    models = found()["models"]
    assert (models["state"], models["fix"]) == ("ok", "")


def test_the_hub_is_not_called_reachable_without_a_look(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert found()["hub"]["detail"].startswith("https://hub.example; not contacted;")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "offline: cached and local models only" in found()["hub"]["detail"]


def test_each_extra_has_a_row_with_its_command(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has(distribution: str) -> bool:
        return False

    extras = ("viewer", "sweeps", "science", "notebook", "chat", "inspect", "organisms")
    rows = found()
    assert {rows[f"extra: {extra}"]["state"] for extra in extras} <= {"ok", "missing"}
    monkeypatch.setattr("seer.cli._doctor._has", has)
    rows = found()
    for extra in extras:
        missing = rows[f"extra: {extra}"]
        assert missing["state"] == "missing"
        assert missing["fix"] == f'pip install "seer-interp[{extra}]"'
        assert "not installed: " in missing["detail"]


def test_what_a_provider_lacks_and_what_to_do_are_two_columns(
    found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("MODAL_TOKEN_ID", "SEER_SSH_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none"))
    rows = found()
    assert rows["provider: modal"]["detail"] == "no Modal credentials are configured"
    assert rows["provider: modal"]["fix"] == "run `modal token new`"
    assert rows["provider: ssh"]["detail"] == "no host is named"
    assert rows["provider: ssh"]["fix"] == "set SEER_SSH_HOST or provider_options['host']"


def test_what_to_do_is_one_line_each_that_no_table_cuts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert "agent: claude: set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN" in lines


@pytest.mark.parametrize("relative", ["", "cache"])
def test_the_disk_that_is_looked_at_is_the_one_that_is_used(
    found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, relative: str
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home / ".cache", here / "cache"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", relative)
    assert found()["disk: cache"]["detail"].endswith(f" in {home / '.cache'}")
