"""Binds the arguments of a call to parameters, and checks and converts them.

A binder is compiled once per function, because it is part of every call. The rules are Python's
own, with more detailed messages. Defaults are left to the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seer.errors import ArgumentError
from seer.rpc.values._convert import EXACT, Compiler, Mismatch

if TYPE_CHECKING:
    from typing import Any

    from seer.rpc.values._convert import Convert

    from ._schema import Function, Parameter


class Binder:
    """Binds calls of one function."""

    __slots__ = (
        "_exact",
        "_keywords",
        "_name",
        "_positional",
        "_positional_names",
        "_required",
        "_rest",
        "_rest_keywords",
    )

    def __init__(self, function: Function, *, plain: bool) -> None:
        compiler = Compiler(function.types, plain=plain)
        self._name = function.name
        self._positional: list[tuple[str, type | None, Convert]] = []
        self._keywords: dict[str, tuple[type | None, Convert]] = {}
        self._required: list[tuple[int, str]] = []
        self._rest: tuple[str, Convert] | None = None
        self._rest_keywords: Convert | None = None
        for index, parameter in enumerate(function.parameters):
            self._add(index, parameter, compiler)
        self._positional_names = {name: i for i, (name, _, _) in enumerate(self._positional)}
        needs_names = any(place < 0 for place, _ in self._required)
        self._exact = None if needs_names else [exact for _, exact, _ in self._positional]
        """The types of positional arguments that need no conversion; None if a name is required."""

    def _add(self, index: int, parameter: Parameter, compiler: Compiler) -> None:
        name, kind = parameter.name, parameter.kind
        convert, exact = compiler.compile(parameter.hint), EXACT.get(parameter.hint.kind)
        if kind == "var_positional":
            self._rest = (name, convert)
            return
        if kind == "var_keyword":
            self._rest_keywords = convert
            return
        if kind != "keyword_only":
            self._positional.append((name, exact, convert))
        if kind != "positional_only":
            self._keywords[name] = (exact, convert)
        if parameter.default is None:
            self._required.append((index if kind != "keyword_only" else -1, name))

    def bind(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The checked and converted arguments.

        Raises:
            ArgumentError: They do not fit the parameters.
        """
        if not kwargs and list(map(type, args)) == self._exact:
            return args, kwargs
        given = len(args)
        positional = self._positional
        if given > len(positional):
            self._bind_rest(args)
        for index, (name, exact, convert) in enumerate(positional):
            if index == given:
                break
            value = args[index]
            if type(value) is not exact:
                args[index] = self._convert(name, convert, value)
        if kwargs:
            kwargs = self._bind_keywords(given, kwargs)
        for place, name in self._required:
            if not (0 <= place < given or name in kwargs):
                raise ArgumentError(f"{self._name}() needs an argument for {name!r}")
        return args, kwargs

    def _bind_rest(self, args: list[Any]) -> None:
        count = len(self._positional)
        if self._rest is None:
            raise ArgumentError(
                f"{self._name}() takes {count} positional argument{'s' * (count != 1)}, "
                f"{len(args)} were given"
            )
        name, convert = self._rest
        for i in range(count, len(args)):
            args[i] = self._convert(f"*{name}[{i - count}]", convert, args[i])

    def _bind_keywords(self, given: int, kwargs: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, value in kwargs.items():
            known = self._keywords.get(name)
            if known is None:
                if self._rest_keywords is None:
                    raise self._unexpected(name)
                exact, convert = None, self._rest_keywords
            else:
                exact, convert = known
                if self._positional_names.get(name, given) < given:
                    raise ArgumentError(f"{self._name}() got two values for {name!r}")
            out[name] = value if type(value) is exact else self._convert(name, convert, value)
        return out

    def _unexpected(self, name: str) -> ArgumentError:
        if name in self._positional_names:
            return ArgumentError(f"{self._name}() takes {name!r} by position only")
        names = [*self._positional_names, *self._keywords]
        known = ", ".join(dict.fromkeys(names)) or "no arguments"
        return ArgumentError(f"{self._name}() has no parameter {name!r}; it takes {known}")

    def _convert(self, name: str, convert: Convert, value: Any) -> Any:
        try:
            return convert(value)
        except Mismatch as problem:
            where = "".join(problem.path)
            raise ArgumentError(f"{self._name}() parameter {name!r}{where}: {problem}") from None
        except RecursionError:
            raise ArgumentError(f"{self._name}() parameter {name!r}: nested too deeply") from None
