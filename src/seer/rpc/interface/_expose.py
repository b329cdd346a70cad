"""What an interface file may call: `expose`, `get_model_path`, `list_configured_models`, `keep`.

The loader injects all of these names except `keep` into the file. `from seer.rpc import expose`
gives the same functions, so a file can also be imported and tested on its own. Each function finds
its interface through the globals of the calling code. For a helper module that the file imports, it
is the interface that was loaded last. Outside of an interface, `expose` only marks functions, and
models come from the `MODEL_..._PATH` variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, overload

from seer.errors import ModelError, ServeError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

CONTEXT = "__seer_interface__"
"""The global of an interface module that holds its `Context`."""
MARK = "__seer_exposed__"


@dataclass(slots=True, eq=False, kw_only=True)
class Options:
    """How a function may be called.

    Attributes:
        timeout: Seconds that one call may run, even if its caller would wait longer; None for no
            limit.
        max_calls: How many calls are served in total; None for no limit.
        max_concurrency: How many calls run at once. By default, functions that are not async share
            one lane, so that module state is safe without locks. Together with `batch`, calls are
            not collected: each runs at once on its own thread, with lists of one item. That is for
            a function that itself combines concurrent calls.
        batch: Up to this many concurrent calls are collected into one call of the function, which
            takes lists: a parameter hinted `list[T]` has a `T` from each call, the calls of a batch
            share all other parameters, and the result is a list with one item per call. The
            default of a batched parameter is a tuple with the item for a call that leaves it out.
            1 for no batching.
        batch_wait: Seconds that a call waits for others to join its batch.
        cost: What one call takes from a budget's `calls`.
        idempotent: Whether a call that was lost in a crash may be made again.
        stateful: Whether calls depend on the state that earlier calls left, so that a caller must
            stay with one copy of the interface.
    """

    timeout: float | None = None
    max_calls: int | None = None
    max_concurrency: int | None = None
    batch: int = 1
    batch_wait: float = 0.005
    cost: float = 1
    idempotent: bool = False
    stateful: bool = True

    def __post_init__(self) -> None:
        if self.timeout is not None:
            _check_number("timeout", self.timeout, above=0)
        if self.max_calls is not None:
            _check_count("max_calls", self.max_calls)
        if self.max_concurrency is not None:
            _check_count("max_concurrency", self.max_concurrency)
        _check_count("batch", self.batch)
        _check_number("batch_wait", self.batch_wait)
        _check_number("cost", self.cost)
        _check_flag("idempotent", self.idempotent)
        _check_flag("stateful", self.stateful)

    def to_json(self) -> dict[str, Any]:
        """The options that are not the default."""
        return {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }


def _check_number(name: str, value: Any, *, above: float | None = None) -> None:
    if type(value) not in (int, float) or not 0 <= value < float("inf") or value == above:
        least = "more than 0" if above is not None else "0 or more"
        raise ValueError(f"expose({name}={value!r}): it must be a number, {least}")


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"expose({name}={value!r}): it must be a whole number, 1 or more")


def _check_flag(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise ValueError(f"expose({name}={value!r}): it must be True or False")


class Context:
    """The models of one interface, and what its file has registered.

    Attributes:
        models: Model names and their paths.
        hidden: Model names that no agent may learn, and the alias of each.
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
    """Make `context` the one that helper modules use, and return the previous one."""
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
def expose(
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
def expose(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as callable through the gate; the function itself is not changed.

    Used bare (`@expose`) or with options (`@expose(timeout=30, batch=8)`); see `Options` for what
    they mean.

    Raises:
        ServeError: What is marked is not a function of the module.
        TypeError: There is no such option.
        ValueError: An option has an invalid value.
    """
    _check_names(options)
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


def _check_names(options: Mapping[str, Any]) -> None:
    known = [one.name for one in fields(Options)]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise TypeError(
                f"expose({name}={options[name]!r}): no such option{hint} "
                f"The options are {', '.join(known)}"
            )


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
            f"@expose takes functions, but {inner.__qualname__} is a method of a class; write a "
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
    path = context.models.get(name, "")
    if not path:
        real = {alias: real for real, alias in context.hidden.items() if real in context.models}
        path = context.models.get(real.get(name, ""), "")
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
