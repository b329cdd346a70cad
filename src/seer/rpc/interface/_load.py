"""Loading an interface file: run it once, and describe what it exposes.

Everything that would fail at call time is an error here, a `ServeError` with file, line and reason:
a file that does not run, nothing exposed, a missing or unusable hint, a duplicate name. All
problems of the signatures are reported together.

A file may import modules beside it relatively (`from ._helpers import x`). It runs as its own
package, so these modules belong to it alone and are reloaded with it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import keyword
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any

from seer.errors import ServeError
from seer.rpc.values._types import DEFAULT_ON_SERVER

from ._blind import Scrubber
from ._describe import describe_functions
from ._expose import CONTEXT, Context, enter, expose, get_model_path, list_configured_models
from ._schema import Function, Schema

NO_NETWORK = "SEER_NO_NETWORK"
"""Set in the process of an interface whose sandbox has no network."""


def network_advice(error: BaseException | None) -> str:
    """Advice if a connection failed because the sandbox has no network; otherwise empty."""
    if NO_NETWORK not in os.environ:
        return ""
    unknown = (socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_NODATA)
    unreachable = (errno.ENETUNREACH, errno.ECONNREFUSED, errno.EHOSTUNREACH)
    for _ in range(10):
        if isinstance(error, OSError) and error.errno in (*unknown, *unreachable):
            return " (this sandbox has no network: SandboxConfig(network=...))"
        if error is None:
            break
        error = error.__cause__ or error.__context__
    return ""


@dataclass(eq=False)
class Interface:
    """A loaded interface.

    Attributes:
        file: The path of its file.
        description: Its schema, without the names of hidden models.
        module: The module of the file.
        context: The models, and what the file has registered.
        warnings: Problems that its author should know about, although it can be served.
        scrubber: Replaces hidden models' names in text that an agent could see.
        blind: Whether tracebacks and other details stay on the server.
    """

    file: str
    description: Schema
    module: ModuleType
    context: Context
    _: KW_ONLY
    warnings: list[str]
    scrubber: Scrubber
    blind: bool

    @property
    def name(self) -> str:
        """Its name."""
        return self.description.name

    @property
    def functions(self) -> dict[str, Function]:
        """The exposed functions by name, ready to bind and call."""
        return self.description.functions

    @property
    def source_hash(self) -> str:
        """SHA-256 of the file and of the modules beside it that it imports."""
        return self.description.source_hash

    def schema(self) -> dict[str, Any]:
        """The schema in its JSON form; `Schema.from_json` reads it."""
        return self.description.to_json()

    def reload(self) -> Interface:
        """Load the file again. The new interface gets the objects of `keep`; this one stays usable.

        Raises:
            ServeError: The file cannot be served.
        """
        return load(
            self.file,
            self.name,
            models=self.context.models,
            hidden=self.context.hidden,
            blind=self.blind,
            kept=self.context.kept,
        )


def load(
    path: str,
    name: str,
    *,
    models: Mapping[str, str] | None = None,
    hidden: Mapping[str, str] | None = None,
    blind: bool | None = None,
    kept: Mapping[str, Any] | None = None,
) -> Interface:
    """Run an interface file and describe what it exposes.

    Args:
        path: The file.
        name: The interface's name: the module that agents import.
        models: Model names and their paths, for `get_model_path`.
        hidden: The model names that no agent may learn, each with its alias.
        blind: Whether tracebacks and other details stay on the server; by default, if there are
            hidden models.
        kept: The objects of `keep` of an earlier load.

    Raises:
        ServeError: The file cannot be served.
    """
    source = _read(path)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ServeError(f"the name {name!r} cannot be imported; give a Python name", file=path)
    context = Context(models, hidden, kept)
    module_name = f"interface_{name}"
    before = _take_out(module_name), enter(context)
    warnings: list[str] = []
    try:
        module = _run(path, module_name, source, context)
        context.exposed = [(_outermost(f, module), options) for f, options in context.exposed]
        if not context.exposed:
            raise ServeError("no function is exposed; mark functions with @expose", file=path)
        functions, types = describe_functions(path, context.exposed, warnings)
    except ServeError:
        # Restore the modules of the interface that was served before.
        _take_out(module_name)
        sys.modules.update(before[0])
        enter(before[1])
        raise
    context.kept = {key: value for key, value in context.kept.items() if key in context.asked}
    scrubber = Scrubber(context.hidden, context.models)
    description = Schema(
        name,
        functions,
        types=types,
        doc=module.__doc__ or "",
        source_hash=_digest(source, module_name),
    )
    if context.hidden:
        _hide(path, description, scrubber)
    return Interface(
        path,
        description,
        module,
        context,
        warnings=[f"{path}:{warning}" for warning in warnings],
        scrubber=scrubber,
        blind=bool(context.hidden) if blind is None else blind,
    )


def _take_out(name: str) -> dict[str, ModuleType]:
    """Remove and return an interface's module and the modules beside it that it imported."""
    inside = f"{name}."
    found = {k: m for k, m in sys.modules.items() if k == name or k.startswith(inside)}
    for key in found:
        del sys.modules[key]
    return found


def _outermost(function: Any, module: ModuleType) -> Any:
    """The function as the module has it, with decorators above `@expose`."""
    found = getattr(module, function.__name__, None)
    inner = found
    while inner is not None and inner is not function:
        inner = getattr(inner, "__wrapped__", None)
    return function if inner is None else found


def _hide(path: str, description: Schema, scrubber: Scrubber) -> None:
    """Remove hidden models' names from the parts of the schema that agents see.

    Raises:
        ServeError: A name is in a place where replacing it would change what the function accepts.
    """
    description.doc = scrubber.text(description.doc)
    fields: list[Any] = []
    for described in (*description.functions.values(), *description.types.values()):
        described.doc = scrubber.text(described.doc)
    for function in description.functions.values():
        fields.extend(function.parameters)
        for parameter in function.parameters:
            parameter.note = scrubber.text(parameter.note)
    for definition in description.types.values():
        fields.extend(definition.fields if definition.kind != "enum" else ())
    for field in fields:
        if field.default is not None and scrubber.text(field.default) != field.default:
            field.default = DEFAULT_ON_SERVER
    text = json.dumps(description.to_json())
    shown = scrubber.text(text)
    if shown != text:
        start = next(i for i, (a, b) in enumerate(zip(text, shown, strict=False)) if a != b)
        raise ServeError(
            "the name of a hidden model occurs in a name, a Literal or an enum that agents see, "
            f"near {shown[max(0, start - 40) : start + 20]!r}; use its alias there",
            file=path,
        )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (pathlib costs a fifth of the start-up)
            return file.read()
    except OSError as error:
        raise ServeError(
            f"the interface file cannot be read: {error.strerror}", file=path
        ) from None


def _run(path: str, name: str, source: bytes, context: Context) -> ModuleType:
    """Execute the file as a new module; what it raises becomes a ServeError."""
    module = ModuleType(name)
    module.__file__ = path
    # A package, so that relative imports find the modules beside the file.
    module.__package__ = name
    module.__path__ = [path.rpartition("/")[0]]
    module.__dict__.update(
        {
            CONTEXT: context,
            "expose": expose,
            "get_model_path": get_model_path,
            "list_configured_models": list_configured_models,
        }
    )
    folder = path.rpartition("/")[0]
    if folder and folder not in sys.path:
        # Last, so that a file beside the interface cannot replace a library.
        sys.path.append(folder)
    if b"\0" in source:
        line = source[: source.index(b"\0")].count(b"\n") + 1
        raise ServeError(
            "there is a null byte here: this is not Python source", file=path, line=line
        )
    # Dataclasses and pydantic look up a class's module by its name.
    sys.modules[name] = module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _serve_error(path, error) from None
    return module


def _serve_error(path: str, error: BaseException) -> ServeError:
    import traceback

    if isinstance(error, SyntaxError) and error.filename == path:
        shown = "".join(traceback.format_exception_only(error))
        return ServeError(
            f"{type(error).__name__}: {error.msg}",
            file=path,
            line=error.lineno,
            remote_traceback=shown,
        )
    trace, line = error.__traceback__, None
    inner = trace
    while inner is not None:
        if inner.tb_frame.f_code.co_filename == path:
            if line is None:
                trace = inner
            line = inner.tb_lineno
        inner = inner.tb_next
    if isinstance(error, ServeError):
        return ServeError(str(error), file=path, line=line)
    said = f": {error}" if str(error) else ""
    reason = f"{type(error).__name__}{said}{network_advice(error)}"
    if isinstance(error, NameError) and error.name in ("keep", "Handle", "Budget"):
        reason += f"; write `from seer.rpc import {error.name}`"
    shown = "".join(traceback.format_exception(type(error), error, trace))
    return ServeError(reason, file=path, line=line, remote_traceback=shown)


def _digest(source: bytes, name: str) -> str:
    """SHA-256 of the file, followed by the digests of the modules beside it, in order of names."""
    inside = f"{name}."
    files = sorted(str(m.__file__) for key, m in sys.modules.items() if key.startswith(inside))
    own = hashlib.sha256(source)
    for file in files:
        own.update(hashlib.sha256(_read(file)).digest())
    return own.hexdigest()
