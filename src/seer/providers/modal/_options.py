"""Options that only Modal has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from seer.errors import ConfigError
from seer.providers._options import options_from

MOST_SECONDS = 24 * 3600
"""The longest lifetime of a sandbox at Modal."""


@dataclass(frozen=True, kw_only=True)
class ModalOptions:
    """Options for `SandboxConfig.provider_options` with `provider="modal"`."""

    app: str = "seer"
    """The app for the sandboxes. It is created if it does not exist."""
    environment: str | None = None
    """Modal's environment, if the account has several."""
    volume: str | None = "seer-cache"
    """The volume that keeps models and packages between sandboxes; None for none."""
    image: str | None = None
    """A registry image to build on, instead of Debian with Python."""
    region: str | None = None
    cloud: str | None = None
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Secrets stored at Modal, each with the variables that programs in the machine get."""

    def __post_init__(self) -> None:
        for name in ("app", "volume", "image", "region", "cloud", "environment"):
            value: object = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ConfigError(f"ModalOptions.{name}", value, "must be a non-empty string")


def read_options(given: object) -> ModalOptions:
    """Read a configuration's options; see `options_from`."""
    return options_from(ModalOptions, given, vendor="Modal")
