"""Repository configurations: addresses, refs, tokens.

It tests the parser of addresses directly, for addresses that no configuration accepts.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.environment import RepoConfig, SandboxConfig
from seer.environment.repos._url import clone_url, repo_name, sends_token_safely
from seer.errors import ConfigError


def refused(make: Any, field: str, *words: str) -> ConfigError:
    """The error of `make()`, which must name the field and all of the words."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)
    return caught.value


def sandbox(**fields: Any) -> SandboxConfig:
    return SandboxConfig(**fields)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://github.com/org/repo.git", "repo"),
        ("https://host:8443/~me/r%20x", "r_20x"),
        ("ssh://git@host/org/repo", "repo"),
        ("git@github.com:org/repo.git", "repo"),
        ("file:///srv/git/thing/", "thing"),
        ("/srv/git/thing", "thing"),
        ("org/repo", "repo"),
    ],
)
def test_repo_addresses_and_their_names(url: str, name: str) -> None:
    assert RepoConfig(url).name == name == repo_name(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://h/r;rm -rf",
        "https://h/$(id)",
        "https://h/`id`",
        "https://h/r|x",
        "https://h/r&x",
        "https://h/r\nx",
        "https://h/'r'",
        "-oProxyCommand=x",
        "--upload-pack=x",
        "ext::sh -c id",
        "ext::id",
        "ftp://h/r",
        "https:///r",
        "https://-h/r",
        "https://",
        "file://",
        "relative/path/three",
        "repo",
        "",
        "/",
        "https://h/.git",
    ],
)
def test_repo_addresses_that_could_do_harm_are_refused(url: str) -> None:
    refused(lambda: RepoConfig(url), "RepoConfig.url")


@pytest.mark.parametrize("url", ["https://tok3n@h/r", "https://u:tok3n@h/r", "ssh://u:tok3n@h/r"])
def test_credentials_in_a_repo_address_are_refused_and_not_shown(url: str) -> None:
    error = refused(lambda: RepoConfig(url), "RepoConfig.url", "token_secret")
    assert "tok3n" not in str(error)
    assert "tok3n" not in repr(error.value)


@pytest.mark.parametrize("ref", ["main", "v1.0", "feature/x", "a" * 40, "refs/pull/1/head"])
def test_refs_are_kept(ref: str) -> None:
    assert RepoConfig("org/repo", ref=ref).ref == ref


@pytest.mark.parametrize(
    "ref",
    ["-x", "--all", "a..b", "a b", "a:b", "a^", "a~1", "x.lock", "/a", "a/", "a@{1}", "$x", ""],
)
def test_refs_that_git_would_misread_are_refused(ref: str) -> None:
    refused(lambda: RepoConfig("org/repo", ref=ref), "RepoConfig.ref")


def test_install_commands_must_say_something() -> None:
    assert RepoConfig("org/repo", install="pip install -e .").install
    refused(lambda: RepoConfig("org/repo", install=" "), "RepoConfig.install")


def test_a_token_is_sent_over_https_or_on_this_machine_only() -> None:
    assert RepoConfig("org/repo", token_secret="GITHUB_TOKEN").token_secret
    assert sends_token_safely("http://127.0.0.1:8000/r")
    refused(lambda: RepoConfig("http://example.org/r", token_secret="T"), "RepoConfig.token_secret")
    refused(lambda: RepoConfig("org/repo", token_secret="ghp_abc"), "RepoConfig.token_secret")


def test_shorthand_means_github() -> None:
    assert clone_url("org/repo") == "https://github.com/org/repo"
    assert clone_url("/srv/x") == "/srv/x"


def test_two_repos_with_one_folder_are_refused() -> None:
    repos = [RepoConfig("a/x"), RepoConfig("b/x.git")]
    refused(lambda: sandbox(repos=repos), "SandboxConfig.repos", "'x'", "'a/x'")


@given(st.text(max_size=40))
def test_accepted_repo_addresses_hold_nothing_for_a_shell(url: str) -> None:
    try:
        RepoConfig(url)
    except ConfigError:
        return
    assert not set(url) & set(" \t\n;|&$`<>(){}[]'\"\\*?!#^")
    assert not url.startswith("-")
