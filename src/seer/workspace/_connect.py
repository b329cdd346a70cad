"""A served library as a live module in a person's own script."""

from __future__ import annotations

import itertools
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING

from seer._sync import run_sync
from seer.errors import ConfigError, SandboxLostError
from seer.rpc import client

if TYPE_CHECKING:
    from seer.workspace._library import Library

_lock = threading.Lock()
_numbers = itertools.count(1)
_CLIENT = "_seer_gate"


def open_gate(library: Library) -> client.Gate:
    """Open a caller of its own; the gate, for whoever calls as that caller.

    Raises:
        ConfigError: The library is local code.
    """
    if library.gate is None:
        raise ConfigError("Library.connect", library.name, "is local code: import its file instead")
    served = library.gate
    caller = run_sync(served.open_caller(f"{library.name} in a script"))

    def explain() -> str:
        try:
            return run_sync(served.how_it_ended())
        except SandboxLostError as error:
            return str(error)

    gate = client.connect(library.name, caller.address)
    gate.explain = explain
    return gate


def connect_library(library: Library) -> ModuleType:
    """Open a caller of its own and load the generated module so that it calls as that caller.

    Raises:
        ConfigError: The library is local code.
    """
    gate = open_gate(library)
    name = f"{library.name}_connected_{next(_numbers)}"
    module = ModuleType(name, library.docs)
    module.__file__ = f"<{library.name}>"
    path = f"{library.name}/__init__.py"
    source = library.files[path if path in library.files else f"{library.name}.py"]

    # The generated code imports the client under the name it has in jails; here it gets the
    # package's own client, bound to this caller's socket, for as long as the loading takes.
    def connect(_name: str) -> client.Gate:
        return gate

    door = ModuleType(_CLIENT)
    vars(door).update(connect=connect, Handle=client.Handle)
    aliases = {_CLIENT: door, f"{_CLIENT}.rpc": _import("seer.rpc")}
    aliases[f"{_CLIENT}.rpc._restore"] = _import("seer.rpc.values._restore")
    with _lock:
        before = {key: sys.modules[key] for key in aliases if key in sys.modules}
        sys.modules.update(aliases)
        sys.modules[name] = module
        try:
            exec(compile(source, module.__file__, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            for key in aliases:
                del sys.modules[key]
            sys.modules.update(before)
    return module


def _import(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(name)
