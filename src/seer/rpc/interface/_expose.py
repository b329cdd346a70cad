"""What an interface file may call: `expose`, `get_model_path`, `list_configured_models`, `keep`.

The loader injects these names into the file. `from seer.rpc import expose` gives the same
functions, so a file can also be imported and tested on its own. Each function finds its interface
through the globals of the calling code. For a helper module that the file imports, it is the
interface that was loaded last. Outside of an interface, `expose` only marks functions, and models
come from the `MODEL_..._PATH` variables.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from seer.errors import ModelError, ServeError

from ._options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar, overload

    F = TypeVar("F", bound=Callable[..., Any])
    T = TypeVar("T")
else:

    def overload(_function: object) -> None:
        """Replaces that of `typing`, which is slow to import and does nothing at run time."""


CONTEXT = "__seer_interface__"
"""The global of an interface module that holds its `Context`."""
MARK = "__seer_exposed__"


class Context:
    """The models of one interface, and what its file has registered.

    Attributes:
        models: Model names and their paths.
        hidden: Names that no agent may learn, and the alias of each.
        exposed: The functions marked so far, with their options.
        kept: Objects that outlive a reload.
        asked: The keys of `kept` that this load has asked for.
    """

    def __init__(
        self,
        models: Mapping[str, str] | None = None,
        hidden: Mapping[str, str] | None = None,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = dict(models or {})
        self.hidden = dict(hidden or {})
        self.kept: dict[str, Any] = dict(kept or {})
        self.asked: set[str] = set()
        self.exposed: list[tuple[Callable[..., Any], Options]] = []


_outside = Context()
_latest = _outside


def enter(context: Context) -> Context:
    """Make `context` the one that helper modules use; the one before."""
    global _latest
    before, _latest = _latest, context
    return before


def _caller(depth: int) -> Context | None:
    """The interface whose code called; None if the caller is not an interface."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    found = frame.f_globals.get(CONTEXT)
    return found if isinstance(found, Context) else None


def _context() -> Context:
    return _caller(2) or _latest


@overload
def expose(function: F, /) -> F: ...
@overload
def expose(  # noqa: F811
    *,
    timeout: float | None = None,
    max_calls: int | None = None,
    max_concurrency: int | None = None,
    batch: int = 1,
    batch_wait: float = 0.005,
    cost: float = 1,
    idempotent: bool = False,
    stateful: bool = True,
) -> Callable[[F], F]: ...
def expose(function: Any = None, /, **options: Any) -> Any:  # noqa: F811
    """Mark a function as callable through the gate; the function itself is not changed.

    Used bare (`@expose`) or with options (`@expose(timeout=30, batch=8)`); see `Options` for what
    they mean.

    Raises:
        ServeError: What is marked is not a function of the module.
        ValueError: An option has a value that cannot work.
    """
    # A helper module may mark functions too, but only those that the file itself marks are exposed.
    context = _caller(1)
    chosen = Options(**options)

    def mark(function: Any) -> Any:
        _check_function(function)
        if context is not None:
            context.exposed.append((function, chosen))
        setattr(function, MARK, chosen)
        return function

    return mark if function is None else mark(function)


def unwrap(function: Any) -> Any:
    """The function inside decorators made with `functools.wraps`."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return function


def _check_function(function: Any) -> None:
    inner = unwrap(function)
    code = getattr(inner, "__code__", None)
    if isinstance(function, type) or code is None or not hasattr(function, "__globals__"):
        raise ServeError(
            f"@expose takes a function written with `def`, not {function!r}; write a function that "
            "calls it"
        )
    outer = inner.__qualname__.rpartition(".")[0]
    if inner.__name__ == "<lambda>":
        raise ServeError(
            "@expose takes a function written with `def`, not a lambda: it has no name"
        )
    if outer and not outer.endswith("<locals>"):
        raise ServeError(
            f"@expose takes functions, and {inner.__qualname__} is a method of a class; write a "
            "function that calls it"
        )


def get_model_path(name: str) -> str:
    """The folder of a configured model.

    Args:
        name: The model's name as in `ModelConfig`, or the alias of a hidden one (`model_0`).

    Raises:
        ModelError: No such model is configured. The message lists the configured ones.
    """
    context = _context()
    path = context.models.get(name)
    if path is None:
        known = (item for item in context.hidden.items() if item[0] in context.models)
        real = {alias: real for real, alias in known}.get(name)
        path = context.models.get(real or "", "")
    if not path and context is _outside:
        path = os.environ.get(model_variable(name), "")
    if not path:
        known = ", ".join(map(repr, _visible(context))) or "none"
        raise ModelError(f"no model {name!r} is configured; configured: {known}")
    return path


class ModelNames(list[str]):
    """Names of models, as a list; also a mapping from each name to the model's folder."""

    def __getitem__(self, key: Any) -> Any:
        if type(key) is str:
            return get_model_path(key)
        return super().__getitem__(key)  # pyright: ignore[reportUnknownVariableType]

    def keys(self) -> list[str]:
        """The names."""
        return list(self)

    def values(self) -> list[str]:
        """The folders."""
        return [get_model_path(name) for name in self]

    def items(self) -> list[tuple[str, str]]:
        """Names and folders."""
        return list(zip(self, self.values(), strict=True))

    def get(self, name: str, default: str | None = None) -> str | None:
        """The folder of a model, or the default."""
        return get_model_path(name) if name in self else default


def list_configured_models() -> ModelNames:
    """The names of the configured models; hidden ones by their alias.

    The list is also a mapping: `list_configured_models()[name]` is the model's folder.
    """
    return ModelNames(_visible(_context()))


def keep(key: str, factory: Callable[[], T]) -> T:
    """An object that outlives a reload of the interface, such as a loaded model.

    Args:
        key: A name for it. An object whose key a reloaded file does not use is released.
        factory: Makes it the first time.
    """
    context = _context()
    context.asked.add(key)
    if key not in context.kept:
        context.kept[key] = factory()
    return context.kept[key]


def model_variable(name: str) -> str:
    """The environment variable that holds a model's path."""
    return f"MODEL_{''.join(c if c.isascii() and c.isalnum() else '_' for c in name).upper()}_PATH"


def _visible(context: Context) -> list[str]:
    return [context.hidden.get(name, name) for name in context.models]
