"""The system files that programs in every jail need, in addition to the policy's mounts.

Generated files replace most of /etc, so a jail learns nothing about the host's users, names and
services. The backends put the parts together.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seer.isolation._policy import Policy

HOSTNAME = "seer"
USERNAME = "agent"
USERS_AGENT = 1000
"""The agent's id in a jail that has users of its own."""

JAIL_UIDS = range(60706, 61184)
"""User ids of jails that root starts: a block that no distribution assigns."""

_DEFAULT_SHM = 1 << 30
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_ALWAYS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts")
_ETC_NETWORK = ("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/ca-trust", "/etc/pki/tls/certs")
_ETC_HOST_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/gai.conf", "/etc/services")
_SYS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
_GPU_DEVICES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm*", "nvidia-modeset", "nvidia-caps", "dxg")
_GPU_PATHS = ("/usr/local/nvidia", "/sys/bus/pci", "/sys/devices/pci*", "/sys/module/nvidia*")
_PAM = """\
auth sufficient pam_rootok.so
auth required pam_deny.so
account required pam_permit.so
password required pam_deny.so
session required pam_permit.so
"""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class SystemView:
    """The system part of a jail."""

    read_only: tuple[str, ...]
    """Host paths that appear at the same place, read-only."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links at the root: (target, path)."""
    hidden: tuple[str, ...]
    """Folders inside `read_only` that appear empty."""
    files: Mapping[str, str]
    """Generated files: path -> content."""
    devices: tuple[str, ...]
    """Plain device nodes that every program may use."""
    gpu_devices: tuple[str, ...]
    """Device nodes of the GPUs, and folders of such nodes."""
    shm_bytes: int
    """The size of /dev/shm."""


def system_view(policy: Policy, *, uid: int, gid: int) -> SystemView:
    """The part of the system that a jail with this policy sees, running as `uid` and `gid`."""
    read_only = ["/usr"]
    links: list[tuple[str, str]] = []
    for name in _ROOT_LINKS:
        path = f"/{name}"
        try:
            # usr-merged: /bin -> usr/bin
            links.append((os.readlink(path), path))  # noqa: PTH115 (hot path, plain strings)
        except FileNotFoundError:
            continue
        except OSError:
            read_only.append(path)
    read_only += _existing(_ETC_ALWAYS)
    files = _generated(uid=uid, gid=gid, home=policy.env.get("HOME", "/"))
    if policy.network != "none":
        read_only += _existing(_ETC_NETWORK)
    if policy.network == "host":
        read_only += _existing(_ETC_HOST_NETWORK)
        for path in _ETC_HOST_NETWORK:
            files.pop(path, None)
    read_only += _existing(_SYS)
    gpu_devices: list[str] = []
    if policy.gpu:
        gpu_devices = [str(path) for name in _GPU_DEVICES for path in Path("/dev").glob(name)]
        read_only += [str(path) for name in _GPU_PATHS for path in sorted(Path("/").glob(name[1:]))]
    links += [("../usr/lib/os-release", "/etc/os-release"), ("/tmp", "/var/tmp")]
    zone = _local_zone()
    if zone:
        links.append((zone, "/etc/localtime"))
    memory = policy.limits.memory
    return SystemView(
        read_only=tuple(read_only),
        links=tuple(links),
        hidden=("/usr/local", *_installed_packages()),
        files=files,
        devices=_DEVICES,
        gpu_devices=tuple(gpu_devices),
        shm_bytes=_DEFAULT_SHM if memory is None else max(memory // 2, 1 << 20),
    )


@cache
def _installed_packages() -> tuple[str, ...]:
    """The folders in which the system keeps its own Pythons' packages."""
    found = [*Path("/usr").glob("lib*/python3*/dist-packages")]
    found += Path("/usr").glob("lib*/python3*/site-packages")
    return tuple(str(path) for path in sorted(found) if not path.is_symlink() and path.is_dir())


def make_etc(folder: Path, *, root: int) -> None:
    """Fill the folder that becomes /etc of a jail with several users, owned by the jail's root."""
    passwd = (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"{USERNAME}:x:{USERS_AGENT}:{USERS_AGENT}:{USERNAME}:/home/{USERNAME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    )
    names = [line.split(":")[0] for line in passwd.splitlines()]
    files = _generated(uid=USERS_AGENT, gid=USERS_AGENT, home="/")
    files |= {
        "/etc/passwd": passwd,
        "/etc/shadow": "".join(f"{name}:*:20000:0:99999:7:::\n" for name in names),
        "/etc/gshadow": f"root:*::\n{USERNAME}:*::\nnogroup:*::\n",
        "/etc/adduser.conf": "",
        "/etc/pam.d/other": _PAM,
        # Only these ids exist on the host.
        "/etc/login.defs": f"UID_MIN {USERS_AGENT}\nGID_MIN {USERS_AGENT}\n",
    }
    for name in ("skel", "pam.d"):
        folder.joinpath(name).mkdir()
        os.chown(folder / name, root, root)
    for path, content in files.items():
        file = folder / path.removeprefix("/etc/")
        file.write_text(content, encoding="utf-8")
        file.chmod(0o600 if "shadow" in path else 0o644)
        os.chown(file, root, root)
    os.chown(folder, root, root)


def _existing(paths: tuple[str, ...]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]  # noqa: PTH110 (hot path)


def _local_zone() -> str | None:
    try:
        target = os.readlink("/etc/localtime")  # noqa: PTH115 (hot path)
    except OSError:
        return None
    return target if "zoneinfo" in target else None


def _generated(*, uid: int, gid: int, home: str) -> dict[str, str]:
    if ":" in home or "\n" in home:
        home = "/"
    return {
        "/etc/passwd": (
            f"root:x:0:0:root:/:/usr/sbin/nologin\n"
            f"{USERNAME}:x:{uid}:{gid}:{USERNAME}:{home}:/bin/sh\n"
            f"nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
        ),
        "/etc/group": f"root:x:0:\n{USERNAME}:x:{gid}:\nnogroup:x:65534:\n",
        "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
