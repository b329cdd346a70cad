"""Connects a served library to its interface in your own script or notebook."""

from __future__ import annotations

import itertools
import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Never

from seer._sync import run_sync
from seer.errors import ConfigError, SandboxLostError
from seer.rpc import client

if TYPE_CHECKING:
    from seer.workspace._library import Library

_lock = threading.Lock()
_numbers = itertools.count(1)
_CLIENT = "_seer_gate"


def open_gate(library: Library) -> client.Gate:
    """Make a new caller of a served library, and return a client that calls as this caller.

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
    """Make a new caller, and load the generated module so that it calls as this caller.

    Raises:
        ConfigError: The library is local code.
    """
    gate = open_gate(library)
    name = f"{library.name}_connected_{next(_numbers)}"
    module = ModuleType(name, library.docs)
    module.__file__ = f"<{library.name}>"
    path = f"{library.name}/__init__.py"
    source = library.files[path if path in library.files else f"{library.name}.py"]

    # The generated code imports the client by its name in jails. While the code loads, that name
    # refers to the package's own client, bound to this caller's socket.
    def connect(_name: str) -> client.Gate:
        return gate

    def refuse(attribute: str) -> Never:
        known = ", ".join(vars(module).get("__all__", ()))
        raise AttributeError(
            f"library {library.name!r} has no function {attribute!r}; it has: {known}",
            name=attribute,
            obj=module,
        )

    vars(module)["__getattr__"] = refuse
    stand_in = ModuleType(_CLIENT)
    vars(stand_in).update(connect=connect, Handle=client.Handle)
    aliases = {
        _CLIENT: stand_in,
        f"{_CLIENT}.rpc": import_module("seer.rpc"),
        f"{_CLIENT}.rpc._restore": import_module("seer.rpc.values._restore"),
    }
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
