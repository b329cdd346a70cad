"""The SSH keys of this user and of each pod.

This user has one key for all pods, in Seer's state folder. Every pod gets its own host key, which
is generated before the pod exists. So even the first connection can be verified.
"""

from dataclasses import dataclass
from pathlib import Path

import asyncssh

from seer._files import locked, replace_file
from seer._paths import state_dir

_NAME = "seer"


@dataclass(frozen=True)
class KeyPair:
    """A private key and its public half, in OpenSSH's formats."""

    private: str
    public: str


def new_pair() -> KeyPair:
    """Generate a new key."""
    key = asyncssh.generate_private_key(  # pyright: ignore[reportUnknownMemberType]
        "ssh-ed25519", comment=_NAME
    )
    return KeyPair(
        key.export_private_key("openssh").decode().strip(),
        key.export_public_key("openssh").decode().strip(),
    )


def own_key() -> tuple[Path, str]:
    """The file of this user's key, created if it does not exist, and its public half."""
    folder = _folder()
    path = folder / "key"
    # Without the lock, two processes could leave halves of different keys.
    with locked(folder / "key.lock"):
        if not path.exists():
            pair = new_pair()
            _write(folder / "key.pub", pair.public)
            _write(path, pair.private)
    return path, (folder / "key.pub").read_text().strip()


def known_hosts(pod: str, address: str, port: int, public: str) -> Path:
    """Write a known-hosts file with the pod's address and key."""
    path = _folder() / f"{pod}.known"
    _write(path, f"[{address}]:{port} {public}" if port != 22 else f"{address} {public}")
    return path


def forget(pod: str) -> None:
    """Remove a pod's known-hosts file."""
    (_folder() / f"{pod}.known").unlink(missing_ok=True)


def _folder() -> Path:
    folder = state_dir() / "runpod"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _write(path: Path, text: str) -> None:
    replace_file(path, text + "\n", mode=0o600)
