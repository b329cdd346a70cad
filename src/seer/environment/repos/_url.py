"""Checks of git addresses and refs. They do not run git."""

import re

from seer.environment.config import _checks as check
from seer.errors import ConfigError

_CHARACTERS = re.compile(r"[A-Za-z0-9._~:/@%+=,-]+")
_SCHEMES = ("https", "http", "ssh", "git", "file")
_SHORTHAND = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_SCP_LIKE = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^/].*")
_USER = re.compile(r"(?<=://)[^/]*@")
_LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost)(:[0-9]+)?/")
_BAD_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\;|&$`<>(){}'\"!#]|\.\.|@\{|//|\.lock(/|$)|/$|\.$")


def check_url(field: str, value: object) -> str:
    """Check that a git address has no credentials and nothing that a shell or git could misread.

    Raises:
        ConfigError: The address is not one of the accepted forms.
    """
    url = check.text(field, value)
    shown = _USER.sub("<not shown>@", url)
    if url.startswith("-"):
        raise ConfigError(field, shown, "must not start with '-'")
    if not _CHARACTERS.fullmatch(url):
        bad = sorted(set(_CHARACTERS.sub("", url)))
        raise ConfigError(field, shown, f"has characters that are not allowed: {''.join(bad)!r}")
    scheme, separator, rest = url.partition("://")
    if separator:
        if scheme not in _SCHEMES or "::" in scheme:
            raise ConfigError(field, shown, f"scheme must be one of {', '.join(_SCHEMES)}")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        if at and (scheme != "ssh" or ":" in user):
            raise ConfigError(
                field, shown, "has credentials; name a secret in RepoConfig.token_secret instead"
            )
        host = rest.partition("/")[0].rpartition("@")[2]
        if (scheme != "file" and not host) or host.startswith("-") or not repo_name(url):
            raise ConfigError(field, shown, "lacks a host or a path")
    elif "::" in url or not (
        url.startswith("/") or _SHORTHAND.fullmatch(url) or _SCP_LIKE.fullmatch(url)
    ):
        raise ConfigError(
            field, shown, "must be a URL, 'git@host:path', an absolute folder, or 'owner/name'"
        )
    if not repo_name(url):
        raise ConfigError(field, shown, "has no name at its end")
    return url


def check_ref(field: str, value: object) -> str:
    """Check that a ref can be a branch, tag or commit.

    Raises:
        ConfigError: Git would refuse it, or would treat it as an option.
    """
    ref = check.text(field, value)
    if ref.startswith(("-", "/", ".")) or _BAD_REF.search(ref):
        raise ConfigError(field, value, "is not a branch, tag or commit")
    return ref


def repo_name(url: str) -> str:
    """The folder name of a checkout: the address's last part without `.git`."""
    last = re.split(r"[/:]", url.rstrip("/"))[-1]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", last.removesuffix(".git")).lstrip(".-")
    return name


def clone_url(url: str) -> str:
    """The address to give to git: `owner/name` means GitHub."""
    if "://" not in url and _SHORTHAND.fullmatch(url):
        return f"https://github.com/{url}"
    return url


def sends_token_safely(url: str) -> bool:
    """Whether a token sent to this address is encrypted, or does not leave this machine."""
    return clone_url(url).startswith("https://") or bool(_LOOPBACK.match(url))
