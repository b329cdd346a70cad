"""Where packages come from: the user's pip and uv settings, as settings of uv.

uv reads its own settings; pip's are translated here, for machines that are set up for pip only.
Addresses may hold credentials. Only the index server gets the credentials; builds and command lines
do not.
"""

import configparser
import netrc
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

_UV_SOURCES = (
    *("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    "UV_NO_INDEX",
)
_UV_OTHER = re.compile(
    r"UV_(INDEX_[A-Z0-9_]+|INSECURE_HOST|HTTP_[A-Z_]+|SYSTEM_CERTS|NATIVE_TLS|EXCLUDE_NEWER"
    r"|TORCH_BACKEND|REQUEST_TIMEOUT|OFFLINE)"
)
_NETWORK = re.compile(r"(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT")
_OUTSIDE = re.compile(r"UV_(INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)|INSECURE_HOST)")
"""Variables for the index server that code in a build must not see."""
DEFAULT_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True)
class IndexSettings:
    """The user's settings as environment variables for uv, and the sources that they name."""

    env: Mapping[str, str]
    paths: tuple[Path, ...]
    """Files and folders of this machine that uv must be able to read."""
    config_files: tuple[Path, ...]
    """uv's own configuration files, the system's first."""
    find_links: tuple[str, ...]
    """Folders and pages of links. `env` does not have them."""
    no_index: bool
    """Whether packages come only from `find_links`."""
    online: bool
    """Whether any source of packages is on the network."""
    remotes: tuple[str, ...]
    """The sources on the network, as the settings write them; the default index included."""
    logins: Mapping[str, tuple[str, str]]
    """User and password for the sources on the network, by `host` or `host:port`."""

    @property
    def build_env(self) -> dict[str, str]:
        """The part of `env` that a build may see: no credentials, certificates or proxies."""
        return {
            name: value if self.online else self.hide(value)
            for name, value in self.env.items()
            if not (name in _CERTIFICATES or _NETWORK.fullmatch(name) or _OUTSIDE.fullmatch(name))
        }

    def hide(self, text: str) -> str:
        """`text` without credentials in its addresses."""
        return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def read_index_settings(environ: Mapping[str, str], *, home: Path | None = None) -> IndexSettings:
    """Read uv's settings, and pip's settings if uv's name no package source.

    Args:
        environ: The user's environment.
        home: The user's home folder.
    """
    home = Path.home() if home is None else home
    files = _uv_files(environ, home)
    tables = [_load_toml(path) for path in files]
    env = {name: value for name, value in environ.items() if _is_passed(name) and value}
    declared = [url for table in tables for url in _toml_sources(table)]
    if not declared and not any(environ.get(name) for name in _UV_SOURCES):
        pip = _pip_settings(environ, home)
        env |= _translate(pip, env)
    sources = [*declared, *_env_sources(env)]
    no_index = _is_true(env.pop("UV_NO_INDEX", "")) or any(t.get("no-index") for t in tables)
    links = _split_links(env.pop("UV_FIND_LINKS", "")) or [
        link for table in tables for link in _listed(table, "find-links")
    ]
    if no_index:
        sources = links
    remotes = [url for url in sources if _host(url)]
    if not no_index and not _replaces_default(env, tables):
        remotes.append(DEFAULT_INDEX)
    online = bool(remotes) and not _is_true(env.get("UV_OFFLINE", ""))
    if not online:
        env = {name: value for name, value in env.items() if name not in _CERTIFICATES}
    return IndexSettings(
        env=env,
        paths=tuple(dict.fromkeys(_local(sources))),
        config_files=tuple(files),
        find_links=tuple(links),
        no_index=no_index,
        online=online,
        remotes=tuple(dict.fromkeys(remotes)) if online else (),
        logins=_logins(remotes, _named(env, tables), environ, home),
    )


def _is_true(value: str) -> bool:
    return value.lower() in ("1", "true", "yes", "on")


def _is_passed(name: str) -> bool:
    return (
        name in _UV_SOURCES
        or name in _CERTIFICATES
        or _UV_OTHER.fullmatch(name) is not None
        or _NETWORK.fullmatch(name) is not None
    )


# --- uv -----------------------------------------------------------------------------------------


def _uv_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    if environ.get("UV_NO_CONFIG"):
        return []
    explicit = environ.get("UV_CONFIG_FILE")
    if explicit:
        return [Path(explicit)]
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [p for p in (Path("/etc/uv/uv.toml"), user / "uv" / "uv.toml") if p.is_file()]


def _load_toml(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def _toml_sources(table: Mapping[str, Any]) -> list[str]:
    indexes = [index["url"] for index in cast("list[dict[str, str]]", table.get("index", []))]
    keys = ("index-url", "extra-index-url", "find-links")
    return indexes + [url for key in keys for url in _listed(table, key)]


def _listed(table: Mapping[str, Any], key: str) -> list[str]:
    """The values of a setting, including those in the `pip` table."""
    found: list[str] = []
    for part in (table, cast("Mapping[str, Any]", table.get("pip", {}))):
        value: Any = part.get(key, [])
        found += [value] if isinstance(value, str) else value
    return found


def _env_sources(env: Mapping[str, str]) -> list[str]:
    found = _split_links(env.get("UV_FIND_LINKS", ""))
    for name in ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"):
        # An index may be written as name=address.
        found += [re.sub(r"^[A-Za-z0-9_.-]+=", "", entry) for entry in env.get(name, "").split()]
    return found


def _split_links(text: str) -> list[str]:
    return [entry for entry in re.split(r"[,\s]+", text) if entry]


def _replaces_default(env: Mapping[str, str], tables: Iterable[Mapping[str, Any]]) -> bool:
    if "UV_DEFAULT_INDEX" in env or "UV_INDEX_URL" in env:
        return True
    for table in tables:
        pip = cast("Mapping[str, Any]", table.get("pip", {}))
        if "index-url" in table or "index-url" in pip:
            return True
        indexes = cast("list[dict[str, Any]]", table.get("index", []))
        if any(index.get("default") for index in indexes):
            return True
    return False


# --- pip ----------------------------------------------------------------------------------------


def _pip_settings(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """pip's settings. Later files override earlier ones, as in pip."""
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = [
        *(
            Path(p) / "pip/pip.conf"
            for p in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
        ),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        user / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    explicit = environ.get("PIP_CONFIG_FILE")
    if explicit == os.devnull:
        places = []
    elif explicit:
        places.append(Path(explicit))
    settings: dict[str, str] = {}
    for place in places:
        parser = configparser.RawConfigParser()
        # Like pip, this ignores a file that is missing or unreadable.
        parser.read(place)
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {k.replace("_", "-"): v for k, v in parser.items(section)}
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def _translate(pip: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    result: dict[str, str] = {}
    if "index-url" in pip:
        result["UV_DEFAULT_INDEX"] = pip["index-url"]
    if "extra-index-url" in pip:
        result["UV_INDEX"] = " ".join(pip["extra-index-url"].split())
        # pip takes the best version of all indexes; uv by default stops at the first index.
        result["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if "find-links" in pip:
        result["UV_FIND_LINKS"] = ",".join(pip["find-links"].split())
    if _is_true(pip.get("no-index", "")):
        result["UV_NO_INDEX"] = "1"
    if "trusted-host" in pip:
        result["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    if "cert" in pip:
        result["SSL_CERT_FILE"] = pip["cert"]
    if "client-cert" in pip:
        result["SSL_CLIENT_CERT"] = pip["client-cert"]
    if "proxy" in pip:
        result |= {"HTTP_PROXY": pip["proxy"], "HTTPS_PROXY": pip["proxy"]}
    return {name: value for name, value in result.items() if name not in env}


# --- addresses ----------------------------------------------------------------------------------


def _local(sources: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for source in sources:
        if source.startswith("file://"):
            path = Path(unquote(urlsplit(source).path))
        elif "://" not in source:
            path = Path(source).expanduser().absolute()
        else:
            continue
        # An index's pages refer to files beside its folder.
        found += [p for p in ([path.parent] if path.name == "simple" else [path]) if p.exists()]
    return found


def _host(source: str) -> str | None:
    parts = urlsplit(source)
    return parts.hostname if parts.scheme in ("http", "https") else None


def _named(env: Mapping[str, str], tables: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The addresses of named indexes, by name."""
    found = {
        index["name"]: index["url"]
        for table in tables
        for index in cast("list[dict[str, str]]", table.get("index", []))
        if "name" in index
    }
    for variable in ("UV_INDEX", "UV_DEFAULT_INDEX"):
        for entry in env.get(variable, "").split():
            name, equals, url = entry.partition("=")
            if equals and "://" not in name:
                found[name] = url
    return found


def _logins(
    remotes: Iterable[str], named: Mapping[str, str], environ: Mapping[str, str], home: Path
) -> dict[str, tuple[str, str]]:
    """Logins from `.netrc`, uv's variables for named indexes, and the addresses themselves."""
    found: dict[str, tuple[str, str]] = {}
    path = Path(environ.get("NETRC") or home / ".netrc")
    try:
        entries = netrc.netrc(str(path)).hosts
    except (OSError, netrc.NetrcParseError):
        entries = {}
    hosts = {_host(url) for url in remotes}
    for host, (login, _, password) in entries.items():
        if host in hosts:
            found[host] = (login, password)
    for name, url in named.items():
        prefix = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
        user, password = environ.get(f"{prefix}_USERNAME"), environ.get(f"{prefix}_PASSWORD")
        if user or password:
            found[origin(url)] = (user or "", password or "")
    for url in remotes:
        parts = urlsplit(url)
        if parts.username is not None:
            found[origin(url)] = (unquote(parts.username), unquote(parts.password or ""))
    return found


def origin(url: str) -> str:
    """The `host` or `host:port` that an address names."""
    return urlsplit(url).netloc.rpartition("@")[2].lower()
