"""Providers by name: those of this package, and those that entry points register."""

import importlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import cast

from seer.errors import MissingExtraError, ProviderError
from seer.providers._base import Provider

logger = logging.getLogger(__name__)

GROUP = "seer.providers"
_BUILT_IN = {
    "local": "seer.providers.local:LocalProvider",
    "modal": "seer.providers.modal:ModalProvider",
    "ray": "seer.providers.ray:RayProvider",
    "runpod": "seer.providers.runpod:RunPodProvider",
    "ssh": "seer.providers.ssh:SshProvider",
}
_EXTRAS = _BUILT_IN.keys() - {"local"}


class DefaultProvider(str):
    """The default provider name. Its type distinguishes it from the same name written by a user."""

    __slots__ = ()


DEFAULT = DefaultProvider("modal")
"""The provider of a configuration that does not name one."""


@cache
def get_provider(name: str) -> Provider:
    """The provider of this name, as a cached object.

    Raises:
        ProviderError: There is no such provider; the message lists the known ones.
        MissingExtraError: Its SDK is not installed; the message names the extra.
    """
    places = _places()
    if name not in places:
        known = ", ".join(sorted(places))
        raise ProviderError(f"provider={name!r} is unknown; known providers: {known}")
    module, _, attribute = places[name].partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        if name in _EXTRAS or not (error.name or "").startswith("seer"):
            advice = f" with `pip install 'seer-interp[{name}]'`" if name in _EXTRAS else ""
            raise MissingExtraError(
                f"provider={name!r} needs a package that is not installed ({error.name}); "
                f"install it{advice}"
            ) from error
        raise
    return cast(Provider, made())


# A provider's connections and locks belong to the parent's event loop.
os.register_at_fork(after_in_child=get_provider.cache_clear)


def _places() -> dict[str, str]:
    # Imported here: it would be a fifth of the import time of every operation on a remote host.
    from importlib.metadata import entry_points

    found = dict(_BUILT_IN)
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, entry.value)
    return found


def provider_names() -> list[str]:
    """The names that `get_provider` knows, sorted."""
    return sorted(_places())


def why_unavailable(name: str) -> str | None:
    """Why a provider cannot be used here; None if it can. This does not use the network.

    Raises:
        ProviderError: There is no such provider.
    """
    try:
        return get_provider(name).unavailable()
    except MissingExtraError as error:
        return str(error)


def resolve_provider(name: str) -> str:
    """Resolve a configuration's provider name.

    While `SEER_REPLAY` names a recorded run, every name resolves to its replay. `SEER_PROVIDER`
    replaces the default, and also an explicit "modal". Without `SEER_PROVIDER`, the default is
    Modal if its credentials are configured, else this machine. Any other name is unchanged.
    """
    if os.environ.get("SEER_REPLAY", "").strip():
        return _announce("replay", "SEER_REPLAY names a run")
    if name != DEFAULT:
        return name
    chosen = os.environ.get("SEER_PROVIDER", "").strip()
    if chosen:
        written = not is_default_provider(name) and chosen != name
        replaced = f"SEER_PROVIDER={chosen} replaces {str(name)!r}"
        return _announce(chosen, replaced if written else "SEER_PROVIDER is set")
    if not is_default_provider(name) or has_modal_credentials():
        return str(name)
    return _announce("local", "no Modal credentials are configured and SEER_PROVIDER is not set")


def is_default_provider(name: str) -> bool:
    """Whether this name is the default, rather than one that a user wrote."""
    return isinstance(name, DefaultProvider)


@cache
def _announce(name: str, reason: str) -> str:
    logger.warning("provider: %r (%s)", name, reason)
    return name


def has_modal_credentials() -> bool:
    """Whether Modal's own client would find a token. This does not read the token."""
    if os.environ.get("MODAL_TOKEN_ID") and os.environ.get("MODAL_TOKEN_SECRET"):
        return True
    file = os.environ.get("MODAL_CONFIG_PATH") or str(Path.home() / ".modal.toml")
    try:
        return "token_id" in Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
