"""SSH options are checked by name and type, and completed from the environment."""

import pytest

from seer.errors import ConfigError
from seer.providers import get_provider
from seer.providers.ssh import SshOptions, SshProvider, options_at, place_of
from seer.providers.ssh._options import read_options


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SshOptions.__dataclass_fields__:
        monkeypatch.delenv(f"SEER_SSH_{name.upper()}", raising=False)


def test_options_come_as_a_mapping_or_as_an_object() -> None:
    given = {"host": "gpu1", "port": 2222, "price_per_hour": 2}
    assert read_options(given) == SshOptions(host="gpu1", port=2222, price_per_hour=2.0)
    assert read_options(SshOptions(host="gpu1")) == SshOptions(host="gpu1")


def test_what_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEER_SSH_HOST", "gpu2")
    monkeypatch.setenv("SEER_SSH_PORT", "23")
    monkeypatch.setenv("SEER_SSH_SHARE_GPUS", "1")
    assert read_options(None) == SshOptions(host="gpu2", port=23, share_gpus=True)
    assert read_options({"host": "gpu1"}).host == "gpu1"
    assert read_options(SshOptions(port=24)).port == 24


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hots": "gpu1"}, "ssh has: host, user"),
        ({"host": 5}, "must be of type str"),
        ({"host": "x", "port": True}, "must be of type int"),
        ({"host": "x", "launcher": "srun 'x"}, "is not a command line"),
        ({}, "no host is named"),
        (5, "must be SshOptions or a mapping"),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(given: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_options(given)


@pytest.mark.parametrize(("name", "text"), [("PORT", "many"), ("SHARE_GPUS", "perhaps")])
def test_a_variable_of_the_wrong_kind_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv("SEER_SSH_HOST", "gpu1")
    monkeypatch.setenv(f"SEER_SSH_{name}", text)
    with pytest.raises(ConfigError, match=f"SEER_SSH_{name}"):
        read_options(None)


def test_the_provider_says_why_it_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(get_provider("ssh"), SshProvider)
    assert (SshProvider().unavailable() or "").startswith("no host is named; ")
    monkeypatch.setenv("SEER_SSH_HOST", "gpu1")
    assert SshProvider().unavailable() is None


@pytest.mark.parametrize("place", ["gpu1", "me@gpu1", "gpu1:2222", "me@gpu1:2222"])
def test_a_place_says_how_to_get_there(place: str) -> None:
    assert place_of(options_at(place)) == place
