"""One operation of a controller, run on a remote host.

    python -I -c "... main()" ROOT OPERATION [ARGUMENT]

ROOT is Seer's folder on the host. The request is JSON on standard input. The answer is JSON lines
on standard output; the last line is `{"ok": ...}` or `{"error": ...}`. Machines outlive the
operation that starts them, because their keepers and session servers are separate processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from seer import errors
from seer._paths import cache_dir, state_dir
from seer._transient import TransientFolder
from seer._unix_sockets import is_served, listen
from seer.errors import HostFullError, SandboxNotFoundError, SeerError
from seer.providers._spec import MachineSpec, read_spec
from seer.providers.client._keeper import KeeperClient
from seer.providers.local import LocalProvider, launch
from seer.providers.local._orphans import remove_orphans
from seer.providers.local._record import (
    LocalRecord,
    how_it_ended,
    is_mounted,
    machines_dir,
    read_record,
)
from seer.providers.local._start import StartedKeeper
from seer.providers.remote.onhost.launched import (
    launch_elsewhere,
    launched_machines,
    launched_status,
    serve_on_node,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAIN = "from seer.providers.remote.onhost.operations import main; main()"
_SESSION_SERVER = "from seer_remote.session_server import main; main()"
_EXTRA = "remote.json"
_CODE = Path(__file__).parents[4]
_RECORD_TIME = 10.0
"""Seconds within which a reaper must clean up after its keeper."""
_STORE_LIFE = 30 * 86400
"""Seconds after which an unused copy is removed."""


def main() -> None:
    """Perform the operation that the command line names."""
    root, operation, *arguments = sys.argv[1:]
    os.umask(0o022)
    # Mark the code archive as used. Unused archives are eventually removed.
    os.utime(_CODE)
    for variable, folder in (("XDG_STATE_HOME", "state"), ("XDG_CACHE_HOME", "cache")):
        os.environ[variable] = f"{root}/{folder}"
    try:
        _say({"ok": _OPERATIONS[operation](*arguments)})
    except SeerError as error:
        _say({"error": _describe(error)})
    except OSError as error:
        kind = HostFullError if error.errno in _FULL else errors.ProviderError
        _say({"error": {"type": kind.__name__, "message": f"on the host: {error}"}})


def _say(message: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _describe(error: SeerError) -> dict[str, object]:
    known = type(error).__name__ if hasattr(errors, type(error).__name__) else "ProviderError"
    return {"type": known, "message": str(error)}


def _request() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(sys.stdin.buffer.read()))


# --- machines ----------------------------------------------------------------------------------


def _start() -> dict[str, object]:
    request = _request()
    if request["launcher"]:
        return launch_elsewhere(request, _own_command("launched"))
    lifeline = os.environ.get("SEER_LIFELINE")
    spec = replace(read_spec(request["spec"]), lifeline=int(lifeline) if lifeline else None)
    # An external scheduler may have chosen the GPUs already.
    given: list[int] | None = request.get("devices")
    if spec.gpu is not None and given is not None:
        spec = _allocated(spec, given)
    answer = asyncio.run(_start_machine(spec, request))
    try:
        _say({"ok": answer})
    except BrokenPipeError:
        # The controller that requested the machine is gone.
        asyncio.run(_end(str(answer["id"])))
    os._exit(0)


def _allocated(spec: MachineSpec, devices: Sequence[int]) -> MachineSpec:
    """The spec with the GPUs that Ray or a launcher chose, numbered in that program's order."""
    order = os.environ.get("CUDA_DEVICE_ORDER")
    env = {**spec.env, "CUDA_DEVICE_ORDER": order} if order else spec.env
    return replace(spec, devices=tuple(devices), env=env)


def _own_command(operation: str) -> list[str]:
    code = f"import sys; sys.path.insert(0, {str(_CODE)!r}); {_MAIN}"
    return [sys.executable, "-I", "-c", code, sys.argv[1], operation]


def _launched() -> None:
    """Start a machine on a node, under a launcher that has chosen the GPUs."""

    async def start_machine(request: Mapping[str, Any]) -> dict[str, object]:
        spec = read_spec(request["spec"])
        if spec.gpu is not None:
            given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            numbers = [int(part) for part in given.split(",") if part.strip().isdigit()]
            if numbers:
                spec = _allocated(spec, numbers[: spec.gpu_count])
            spec = replace(spec, share_gpus=True)
        return await _start_machine(spec, request)

    serve_on_node(start_machine)
    os._exit(0)


async def _start_machine(spec: MachineSpec, request: Mapping[str, Any]) -> dict[str, object]:
    with _listening(request["gates"]) as (paths, gates):
        started, keeper = await launch(replace(spec, gates=paths, relayed=frozenset(paths)))
        return await _hand_over(started, keeper, spec, request, gates)


async def _hand_over(
    started: StartedKeeper,
    keeper: KeeperClient,
    spec: MachineSpec,
    request: Mapping[str, Any],
    gates: Mapping[str, socket.socket],
) -> dict[str, object]:
    """Start a session server, which holds the machine until its controller connects."""
    control = os.dup(started.control.fileno())
    try:
        extra = {"price": request["price"]}
        (started.folder / _EXTRA).write_text(json.dumps(extra))
        _spawn_session_server(started.folder, control, spec.lease, gates=gates)
    except BaseException:
        await keeper.tell("terminate")
        await keeper.ended.wait()
        raise
    finally:
        os.close(control)
        await keeper.close()
    return _answer(started.folder, started.record)


async def _end(machine_id: str) -> None:
    machine = await LocalProvider().find(machine_id)
    await machine.terminate()


def _answer(folder: Path, record: LocalRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "record": json.dumps(asdict(record)),
        "porter": str(folder / "porter.sock"),
        **json.loads((folder / _EXTRA).read_text()),
    }


@contextlib.contextmanager
def _listening(
    names: Sequence[str],
) -> Generator[tuple[dict[str, Path], dict[str, socket.socket]]]:
    """Listening sockets for a machine's gates. The machine's session server serves them."""
    root = state_dir() / "gates"
    for left in root.glob("*") if names else ():
        _remove_unserved(left)
    folder = root / secrets.token_hex(6)
    paths = {name: folder / f"{name}.sock" for name in names}
    with contextlib.ExitStack() as opened:
        gates: dict[str, socket.socket] = {}
        for name, path in paths.items():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Other users cannot enter the folder. The jail sees only the socket.
            gates[name] = opened.enter_context(listen(path, 512, mode=0o666))
        yield paths, gates


def _remove_unserved(folder: Path) -> None:
    if not any(is_served(path) for path in folder.glob("*.sock")):
        shutil.rmtree(folder, ignore_errors=True)


def _spawn_session_server(
    folder: Path, control: int, lease: float, *, gates: Mapping[str, socket.socket] | None = None
) -> None:
    # A session server that was killed leaves its socket.
    (folder / "porter.sock").unlink(missing_ok=True)
    with listen(folder / "porter.sock", 64) as listener:
        code = f"import sys; sys.path.insert(0, {str(_CODE)!r}); {_SESSION_SERVER}"
        numbers = (str(listener.fileno()), str(control), str(int(lease * 1000)))
        named = [f"{name}={gate.fileno()}" for name, gate in (gates or {}).items()]
        passed = [gate.fileno() for gate in (gates or {}).values()]
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, *numbers, str(folder), *named],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            pass_fds=(listener.fileno(), *passed, *([control] if control >= 0 else [])),
            start_new_session=True,
        )


def _find(machine_id: str) -> dict[str, object]:
    for answer in launched_machines():
        if answer["id"] == machine_id:
            return answer
    folder = machines_dir() / machine_id
    remove_orphans(machine_id)
    try:
        record = read_record(folder)
    except (OSError, ValueError):
        known = how_it_ended(machine_id)
        if known is None:
            raise SandboxNotFoundError(f"no sandbox {machine_id!r} runs on this host") from None
        raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {known[0]}") from None
    if not is_served(folder / "porter.sock"):
        _spawn_session_server(folder, -1, record.lease)
    return _answer(folder, record)


def _list() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for status in asyncio.run(LocalProvider().list()):
        with contextlib.suppress(OSError, ValueError):
            extra = json.loads((machines_dir() / status.id / _EXTRA).read_text())
            found.append({**asdict(status), **extra})
    for answer in launched_machines():
        status = launched_status(answer)
        if status is not None:
            found.append({**asdict(status), "price": answer["price"]})
    return found


def _ended(machine_id: str) -> str | None:
    """Why a machine ended; None if it is still running or the reason is unknown.

    After a keeper is killed, its reaper needs a moment to record that. If both were killed, this
    cleans up instead.
    """
    folder = machines_dir() / machine_id
    deadline = time.monotonic() + _RECORD_TIME
    while True:
        if folder.is_dir():
            remove_orphans(machine_id)
        # Check the folder before the record, because it is removed after the reason is recorded.
        gone = not folder.is_dir()
        known = how_it_ended(machine_id)
        if known is not None:
            return known[0]
        if gone or is_served(folder / "keeper.sock") or time.monotonic() > deadline:
            return None
        time.sleep(0.02)


# --- copies of the controller's files ------------------------------------------------------------


def _has(name: str) -> str | None:
    """The folder of a stored copy, marked as used; None if there is none."""
    folder = cache_dir() / "store" / name
    if not folder.is_dir():
        return None
    os.utime(folder)
    return str(folder)


def _store(name: str) -> str:
    """Unpack a tar from standard input into the store, under a hash of its content.

    Raises:
        ProviderError: The folder could not be stored.
    """
    store = cache_dir() / "store"
    store.mkdir(mode=0o700, exist_ok=True)
    with TransientFolder("draft", inside=store) as draft:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            # Pythons before 3.11.4 have no filters. The archive can be trusted, because the
            # controller sent it.
            archive.extraction_filter = getattr(tarfile, "tar_filter", None)
            archive.extractall(draft)
        draft.chmod(0o755)
        with contextlib.suppress(FileExistsError, OSError):
            draft.rename(store / name)
    _prune(store)
    _prune(_CODE.parent)
    found = _has(name)
    if found is None:
        raise errors.ProviderError(f"the copy {name!r} could not be stored")
    return found


def _prune(store: Path) -> None:
    for folder in store.iterdir():
        with contextlib.suppress(OSError):
            if folder.lstat().st_mtime < time.time() - _STORE_LIFE and not is_mounted(folder):
                shutil.rmtree(folder, ignore_errors=True)


# --- programs ----------------------------------------------------------------------------------


def _run(module: str) -> object:
    """Run the `main` of a module of the code archive with the request, and forward its reports."""
    if not module.startswith("seer."):
        raise errors.ProviderError(f"{module!r} is not a module of the code archive")
    work = cast(
        "Callable[[Mapping[str, Any], Callable[[Mapping[str, object]], None]], object]",
        importlib.import_module(module).main,
    )
    given = _request()
    os.environ.update(given["environment"])
    return work(given["request"], lambda message: _say({"message": message}))


_OPERATIONS: dict[str, Callable[..., object]] = {
    "start": _start,
    "launched": _launched,
    "find": _find,
    "list": _list,
    "ended": _ended,
    "has": _has,
    "store": _store,
    "run": _run,
}
