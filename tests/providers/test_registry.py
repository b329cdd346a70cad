"""Providers are found by name, and the default is resolved to one that is available."""

import dataclasses
import logging
import pickle
from pathlib import Path

import pytest

from seer.environment import Sandbox, SandboxConfig
from seer.environment._adoption import config_from_dict, config_to_dict
from seer.errors import MissingExtraError, ProviderError, StartError
from seer.providers import DEFAULT, get_provider, resolve_provider
from seer.providers import _registry as registry


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, and no cached providers from other tests."""
    for name in ("SEER_PROVIDER", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "modal.toml"))
    for cached in ("get_provider", "_announce"):
        getattr(registry, cached).cache_clear()


def test_the_local_provider_is_there_and_always_the_same() -> None:
    assert get_provider("local") is get_provider("local")
    assert get_provider("local").shares_host


def test_an_unknown_provider_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ProviderError, match=r"'clowd' is unknown; known providers:.*local"):
        get_provider("clowd")


def test_a_provider_without_its_sdk_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {"modal": "no_such_vendor_sdk.provider:Provider"}
    monkeypatch.setattr(registry, "_places", lambda: places)
    with pytest.raises(MissingExtraError, match=r"pip install 'seer-interp\[modal\]'"):
        get_provider("modal")


def test_a_provider_of_another_project_names_the_missing_package_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {"acme": "no_such_vendor_sdk.provider:Provider"}
    monkeypatch.setattr(registry, "_places", lambda: places)
    with pytest.raises(MissingExtraError, match=r"\(no_such_vendor_sdk\); install it$"):
        get_provider("acme")


def test_every_other_name_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEER_PROVIDER", "ssh")
    assert resolve_provider("runpod") == "runpod"
    assert resolve_provider("local") == "local"


def test_the_default_is_what_seer_provider_says(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SEER_PROVIDER", "ssh")
    with caplog.at_level(logging.WARNING):
        assert resolve_provider(DEFAULT) == "ssh"
        assert resolve_provider(DEFAULT) == "ssh"
    assert caplog.text.count("'ssh'") == 1, "said once, loudly"
    with caplog.at_level(logging.WARNING):
        assert resolve_provider("modal") == "ssh", "also where it is written"
    assert "SEER_PROVIDER=ssh replaces 'modal'" in caplog.text


def test_the_default_is_local_without_credentials(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert resolve_provider(DEFAULT) == "local"
    assert "'local'" in caplog.text


def test_a_provider_that_was_written_is_never_replaced_for_want_of_credentials() -> None:
    assert resolve_provider("modal") == "modal"
    assert SandboxConfig(provider="modal") == SandboxConfig(), "the default shows as what it is"
    copied = pickle.loads(pickle.dumps(dataclasses.replace(SandboxConfig(), gpu=None)))
    assert resolve_provider(copied.provider) == "local"
    restored = config_from_dict(config_to_dict(SandboxConfig()))
    assert resolve_provider(restored.provider) == "local"
    restored = config_from_dict(config_to_dict(SandboxConfig(provider="modal")))
    assert resolve_provider(restored.provider) == "modal"
    with pytest.raises(StartError, match="no Modal credentials are configured"):
        Sandbox(SandboxConfig(provider="modal", gpu=None)).start()


def test_the_default_is_modal_with_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "modal.toml").write_text("[default]\ntoken_id = 'x'\ntoken_secret = 'y'\n")
    assert resolve_provider(DEFAULT) == "modal"
    (tmp_path / "modal.toml").unlink()
    monkeypatch.setenv("MODAL_TOKEN_ID", "x")
    assert resolve_provider(DEFAULT) == "local"
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "y")
    assert resolve_provider(DEFAULT) == "modal"
