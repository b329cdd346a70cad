"""GPUs: their names in configurations, the devices that match a name, and which devices are free.

All providers use this. A name matches a device if both are equal after vendors' names and form
factors are removed. `A100` matches `NVIDIA A100-SXM4-80GB`, but `A10` does not.
"""

import contextlib
import difflib
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from seer._files import locked
from seer._paths import state_dir
from seer.errors import CapacityError, HostUnsuitableError
from seer.providers.local._orphans import remove_orphans
from seer.providers.local._record import machines_dir, read_record

_PROC = Path("/proc/driver/nvidia/gpus")
_QUERY = ("--query-gpu=index,uuid,name", "--format=csv,noheader")
_USED = ("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
_FREE = ("--query-gpu=memory.free", "--format=csv,noheader,nounits")
_SMI_PATIENCE = 30.0
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""The environment that makes CUDA number GPUs as `devices` does."""

# --- names -------------------------------------------------------------------------------------


GPUS = (
    "T4",
    "V100",
    "P100",
    "L4",
    "A10",
    "A10G",
    "A30",
    "A40",
    "L40",
    "L40S",
    "A100",
    "A100-40GB",
    "A100-80GB",
    "H100",
    "H100-NVL",
    "GH200",
    "H200",
    "B200",
    "B300",
    "RTX3090",
    "RTX4090",
    "RTX5090",
    "RTX4000-Ada",
    "RTX6000-Ada",
    "RTXA4000",
    "RTXA5000",
    "RTXA6000",
    "RTXPRO6000",
    "MI300X",
)
"""Every known GPU by the name that configurations use."""

_WORDS = re.compile(r"[A-Z0-9]+")
_MEMORY = re.compile(r"(\d+)GB?")
_WITHOUT_MEANING = re.compile(
    r"NVIDIA|TESLA|GEFORCE|AMD|INSTINCT|GENERATION|BLACKWELL|SERVER|WORKSTATION|EDITION"
    r"|PCIE|SXM\d?|OAM|HBM\d?E?|AC"
)
"""Names of vendors, form factors and kinds of memory. Any other word distinguishes kinds: an `RTX
3090 Ti` is not an `RTX 3090`."""
_SAME = {"H200NVL": "H200"}
"""Kinds whose names differ, but only in form factor."""


def is_kind(wanted: str, name: str, *, memory_gib: int | None = None) -> bool:
    """Whether a device is of the kind that a configuration names.

    Args:
        wanted: The kind, such as `A100` (of any memory) or `A100-80GB`.
        name: The device's name, in full or as a vendor writes it.
        memory_gib: The device's memory, if another source than the name gives it.
    """
    kind, memory = _parse(wanted)
    found, memory_found = _parse(name)
    if kind != found:
        return False
    return memory is None or memory in (memory_found, memory_gib)


def spelled_by(wanted: str, names: Iterable[str]) -> str:
    """The vendor's name for `wanted`; `wanted` itself if the vendor has none."""
    known = list(names)
    if wanted in known:
        return wanted
    return next((name for name in known if _parse(name) == _parse(wanted)), wanted)


def _parse(name: str) -> tuple[str, int | None]:
    """The kind that a name denotes, and the memory in GB that it states, if any."""
    kind, memory = "", None
    for word in _WORDS.findall(name.upper()):
        if size := _MEMORY.fullmatch(word):
            memory = int(size[1])
        elif not _WITHOUT_MEANING.fullmatch(word):
            kind += word
    return _SAME.get(kind, kind), memory


def suggest_gpu(name: str) -> str | None:
    """The known GPU with the most similar name, or None if no name is similar."""
    plain = {"".join(_WORDS.findall(known.upper())): known for known in GPUS}
    asked = "".join(_WORDS.findall(name.upper()))
    near = difflib.get_close_matches(asked, plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else None


# --- the devices of this host ------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A GPU of this host."""

    index: int
    """Its number in PCI bus order, as in nvidia-smi, and in CUDA with `ORDER`."""
    name: str
    busy: bool
    """Whether a process is using it."""


def devices() -> list[Device]:
    """The GPUs of this host; empty without an NVIDIA driver."""
    listed = _ask(*_QUERY)
    if not listed:
        return [Device(index, name, busy=False) for index, name in enumerate(_from_driver())]
    used = {line.partition(",")[0].strip() for line in _ask(*_USED)}
    found: list[Device] = []
    for line in listed:
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and parts[0].isdigit():
            found.append(Device(int(parts[0]), parts[2], parts[1] in used))
    return found


def free_memory(count: int) -> int | None:
    """The free memory, in bytes, of the `count` GPUs with the most; None if it is unknown."""
    free = sorted((int(line) for line in _ask(*_FREE) if line.strip().isdigit()), reverse=True)
    return sum(free[:count]) << 20 if free else None


def _ask(*arguments: str) -> list[str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SMI_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _from_driver() -> list[str]:
    names: list[str] = []
    for file in sorted(_PROC.glob("*/information")):
        for line in file.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                names.append(value.strip())
    return names


# --- allocation --------------------------------------------------------------------------------


def choosing() -> AbstractContextManager[None]:
    """A lock for finding free GPUs. A start holds it until its machine's record names the GPUs."""
    return locked(state_dir() / "gpus.lock")


def taken() -> list[int]:
    """The GPUs of this host that machines have. A shared GPU occurs once for each of its machines.

    A paused machine whose GPU memory was moved to the host has no GPUs. It gets them back on
    resuming, if they have enough free memory.
    """
    remove_orphans()
    found: list[int] = []
    for folder in machines_dir().iterdir():
        # The machine may be starting or may have just ended.
        with contextlib.suppress(OSError, ValueError):
            if not (folder / "gpus-freed").exists():
                found += read_record(folder).devices
    return found


def pick(
    there: Collection[Device],
    wanted: str,
    count: int,
    *,
    taken: Collection[int],
    share: bool,
    any_kind: bool = False,
) -> list[Device]:
    """The GPUs for a new machine.

    Args:
        there: The host's GPUs.
        wanted: The kind, as configurations spell it.
        count: How many the machine needs.
        taken: The GPUs that machines on this host have, from `taken`.
        share: Whether to accept GPUs that are taken or busy; the least used come first.
        any_kind: Whether to accept another kind.

    Raises:
        HostUnsuitableError: The host does not have enough GPUs of this kind.
        CapacityError: The host has them, but they are in use.
    """
    fitting = [device for device in there if any_kind or is_kind(wanted, device.name)]
    if len(fitting) < count:
        names = ", ".join(device.name for device in there) or "no NVIDIA GPU"
        raise HostUnsuitableError(
            f"gpu={wanted!r} (gpu_count={count}) was requested; this host has: {names}"
        )
    users = Counter(taken)
    free = [device for device in fitting if not users[device.index] and not device.busy]
    if share:
        rest = [device for device in fitting if device not in free]
        free += sorted(rest, key=lambda device: users[device.index])
    if len(free) < count:
        ours = sum(users[device.index] > 0 for device in fitting)
        theirs = sum(device.busy and not users[device.index] for device in fitting)
        raise CapacityError(
            f"{count} free {wanted} needed, {len(free)} of {len(fitting)} free: "
            f"{ours} in use by sandboxes, {theirs} by other processes"
        )
    return free[:count]
