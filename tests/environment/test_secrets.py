"""Secrets: found by name, never shown.

It tests the lookup itself, because a sandbox shows only names of secrets.
"""

import json
import pickle
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer._redact import Redactor
from seer._settings import setting
from seer.environment._secrets import Secrets, load_secrets
from seer.errors import SecretMissingError
from seer.harness import run_agent

VALUE = "hunter22-äß/+$x"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in no project."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_secrets_come_from_the_environment_first_then_from_dotenv(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("A=from-file\nB=from-file\nC='with $HOME kept'\n")
    monkeypatch.setenv("A", "from-env")
    secrets = load_secrets(["A", "B", "C"])
    assert secrets.values() == {"A": "from-env", "B": "from-file", "C": "with $HOME kept"}
    assert secrets.names == ("A", "B", "C")
    assert secrets.get("A") == "from-env"
    assert secrets.get("Z") is None


def test_all_missing_secrets_are_named_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("EMPTY=\nBARE\n")
    monkeypatch.setenv("HERE", VALUE)
    with pytest.raises(SecretMissingError) as caught:
        load_secrets(["A", "HERE", "EMPTY", "BARE"], required=True)
    assert "A, EMPTY, BARE" in str(caught.value)
    assert "HERE" not in str(caught.value)
    assert VALUE not in str(caught.value)


def test_a_secret_that_is_missing_and_not_required_is_a_warning_that_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("A", VALUE)
    found = load_secrets(["A", "huggingface-secret"])
    assert found.names == ("A",)
    assert "not set: huggingface-secret;" in caplog.text
    assert VALUE not in caplog.text


def test_dotenv_is_found_up_to_the_root_of_the_project_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "project" / "experiments" / "one"
    inner.mkdir(parents=True)
    (tmp_path / ".env").write_text("SEER_TEST_C=outside\n")
    (tmp_path / "project" / ".env").write_text("SEER_TEST_C=project\nOPENAI_API_KEY=sk-planted\n")
    monkeypatch.chdir(inner)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert setting("SEER_TEST_C") is None, "nothing marks a project"
    (inner / "pyproject.toml").touch()
    assert setting("SEER_TEST_C") is None, "the project begins here"
    (inner / "pyproject.toml").rename(tmp_path / "project" / "pyproject.toml")
    assert load_secrets(["SEER_TEST_C"]).values() == {"SEER_TEST_C": "project"}
    run = run_agent("x", tools=False, provider="openai", model="m", record=False)
    assert run.run_id, "the key of the file serves the agent"
    (inner / ".env").write_text("SEER_TEST_C=nearest\n")
    assert setting("SEER_TEST_C") == "nearest"
    monkeypatch.setenv("SEER_TEST_C", "set")
    assert setting("SEER_TEST_C") == "set"


def test_no_names_need_no_file(folder: Path) -> None:
    assert load_secrets([]).values() == {}


def test_secrets_show_and_store_no_value() -> None:
    secrets = Secrets({"TOKEN": VALUE})
    assert VALUE not in repr(secrets)
    assert VALUE not in str(secrets)
    assert "TOKEN" in repr(secrets)
    assert VALUE not in repr(Redactor([VALUE]))
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(secrets)


def test_values_given_out_are_a_copy() -> None:
    secrets = Secrets({"TOKEN": VALUE})
    secrets.values().clear()
    assert secrets.get("TOKEN") == VALUE


@pytest.mark.parametrize(
    "spelling",
    [VALUE, quote(VALUE, safe=""), json.dumps(VALUE), repr({"x": VALUE}), f"a{VALUE}b{VALUE}"],
)
def test_a_secret_is_taken_out_in_every_spelling(spelling: str) -> None:
    redacted = Secrets({"TOKEN": VALUE}).redact(f"before {spelling} after")
    assert "hunter22" not in redacted
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")


def test_every_line_of_a_key_is_taken_out() -> None:
    key = "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----\n"
    assert "ijklmnop" not in Redactor([key]).redact("line: ijklmnop")


def test_very_short_values_do_not_destroy_texts() -> None:
    assert Redactor(["1", ""]).redact("1 of 1") == "1 of 1"
    assert Redactor().redact("text") == "text"


@given(secret=st.text(min_size=4), text=st.text())
def test_no_text_keeps_a_secret(secret: str, text: str) -> None:
    redacted = Redactor([secret]).redact(f"{text}{secret}{text}")
    # Characters of the mask itself do not come from the secret.
    assert secret not in redacted.replace("[redacted]", "") or secret in "[redacted]"
