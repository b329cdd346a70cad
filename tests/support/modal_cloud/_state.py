"""The cloud's state: its account, apps, secrets, volumes, and the faults that a test sets."""

import secrets
import string
from dataclasses import dataclass, field
from pathlib import Path

from grpclib import GRPCError, Status

GPUS = frozenset(
    [
        "T4",
        "L4",
        "A10",
        "A10G",
        "L40S",
        "A100",
        "A100-40GB",
        "A100-80GB",
        "RTX-PRO-6000",
        "H100",
        "H100!",
        "H200",
        "B200",
        "B200+",
    ]
)
"""The GPU names that Modal's guide lists."""
_ALPHABET = string.ascii_letters + string.digits


def new_id(prefix: str, *, length: int = 22) -> str:
    """An id in Modal's form."""
    return f"{prefix}-{''.join(secrets.choice(_ALPHABET) for _ in range(length))}"


@dataclass
class Faults:
    """What goes wrong, until the test sets it right again. May be changed at any time."""

    capacity: bool = True
    """Whether sandboxes get a machine; without it they wait."""
    quota: int | None = None
    """Sandboxes that may run at once; one more is refused."""
    token_revoked: bool = False
    """Whether the account's token is refused."""
    outage: bool = False
    """Whether every call fails as it does when Modal cannot be reached."""
    gpu_given: str = ""
    """The GPU that sandboxes with one get, whatever they asked for."""
    build_failure: str = ""
    """Words with which every image build that runs commands fails."""
    unanswered: str = ""
    """Text of commands whose exit code nobody learns, because their sandbox ends first."""


@dataclass
class Shelf:
    """Named objects of one kind, and where their content is."""

    prefix: str
    by_name: dict[str, str] = field(default_factory=dict[str, str])

    def get_or_create(self, name: str, *, create: bool) -> str:
        """The id of a named object.

        Raises:
            GRPCError: There is none, and none was to be made.
        """
        if name and name in self.by_name:
            return self.by_name[name]
        if not create:
            raise GRPCError(Status.NOT_FOUND, f"{name!r} was not found")
        made = new_id(self.prefix)
        self.by_name[name or made] = made
        return made


@dataclass
class Account:
    """The one account of the cloud, and everything it owns except images and sandboxes."""

    folder: Path
    token_id: str = field(default_factory=lambda: new_id("ak"))
    token_secret: str = field(default_factory=lambda: new_id("as"))
    apps: Shelf = field(default_factory=lambda: Shelf("ap"))
    volumes: Shelf = field(default_factory=lambda: Shelf("vo"))
    named_secrets: Shelf = field(default_factory=lambda: Shelf("st"))
    secret_values: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def volume_folder(self, volume_id: str) -> Path:
        """Where a volume's files are."""
        if volume_id not in self.volumes.by_name.values():
            raise GRPCError(Status.NOT_FOUND, f"Volume {volume_id!r} not found")
        folder = self.folder / "volumes" / volume_id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def secret(self, secret_id: str) -> dict[str, str]:
        """A secret's variables."""
        if secret_id not in self.secret_values:
            raise GRPCError(Status.NOT_FOUND, f"Secret {secret_id!r} not found")
        return self.secret_values[secret_id]
