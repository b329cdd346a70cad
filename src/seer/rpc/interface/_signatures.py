"""Signatures as source text, for docs and generated code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from seer.rpc.values._hints import Hint

    from ._schema import Function


def signature(
    function: Function,
    *,
    hint_text: Callable[[Hint], str] = str,
    default_text: Callable[[str], str] = str,
) -> str:
    """`name(parameters) -> result`.

    Args:
        function: The function.
        hint_text: How hints are written.
        default_text: How defaults are written.
    """
    parts: list[str] = []
    previous = "positional_only"
    for parameter in function.parameters:
        kind = parameter.kind
        if previous == "positional_only" and kind != "positional_only" and parts:
            parts.append("/")
        if kind == "keyword_only" and previous not in ("keyword_only", "var_positional"):
            parts.append("*")
        star = {"var_positional": "*", "var_keyword": "**"}.get(kind, "")
        text = f"{star}{parameter.name}: {hint_text(parameter.hint)}"
        if parameter.default is not None:
            text += f" = {default_text(parameter.default)}"
        parts.append(text)
        previous = kind
    if previous == "positional_only" and parts:
        parts.append("/")
    returns = hint_text(function.returns)
    if function.is_generator:
        returns = f"Iterator[{returns}]"
    return f"{function.name}({', '.join(parts)}) -> {returns}"
