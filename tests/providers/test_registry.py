"""Providers are found by name, and the default name stands for what is there."""

import logging
from pathlib import Path

import pytest

from seer.errors import MissingExtraError, ProviderError
from seer.providers import _registry as registry
from seer.providers import get_provider, resolve_provider


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, and nothing remembered from other tests."""
    for name in ("SEER_PROVIDER", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "modal.toml"))
    for cached in ("_load", "_announce"):
        getattr(registry, cached).cache_clear()


def test_the_local_provider_is_there_and_always_the_same() -> None:
    assert get_provider("local") is get_provider("local")
    assert get_provider("local").shares_host


def test_an_unknown_provider_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ProviderError, match=r"'clowd' is unknown; there are:.*local"):
        get_provider("clowd")


def test_a_provider_without_its_sdk_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {"modal": "no_such_vendor_sdk.provider:Provider"}
    monkeypatch.setattr(registry, "_places", lambda: places)
    with pytest.raises(MissingExtraError, match=r"pip install 'seer\[modal\]'"):
        get_provider("modal")


def test_every_other_name_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEER_PROVIDER", "ssh")
    assert resolve_provider("runpod") == "runpod"
    assert resolve_provider("local") == "local"


def test_the_default_is_what_seer_provider_says(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SEER_PROVIDER", "ssh")
    with caplog.at_level(logging.WARNING):
        assert resolve_provider("modal") == "ssh"
        assert resolve_provider("modal") == "ssh"
    assert caplog.text.count("'ssh'") == 1, "said once, loudly"


def test_the_default_is_local_without_credentials(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert resolve_provider("modal") == "local"
    assert "'local'" in caplog.text


def test_the_default_is_modal_with_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "modal.toml").write_text("[default]\ntoken_id = 'x'\ntoken_secret = 'y'\n")
    assert resolve_provider("modal") == "modal"
    (tmp_path / "modal.toml").unlink()
    monkeypatch.setenv("MODAL_TOKEN_ID", "x")
    assert resolve_provider("modal") == "local"
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "y")
    assert resolve_provider("modal") == "modal"
