"""Checks the Python types of values that a program gives."""

from collections.abc import Sequence
from typing import NoReturn, TypeVar, cast

from seer.errors import ConfigError

T = TypeVar("T")


def wrong_type(field: str, value: object, wanted: str) -> NoReturn:
    """Refuse `value` for its type."""
    raise ConfigError(field, value, f"must be {wanted}, not {type(value).__name__}")


def check_type(
    field: str, value: object, kind: type | tuple[type, ...], wanted: str, *, none: bool = False
) -> None:
    """Refuse a value that is not of `kind`; None is accepted if `none` is true."""
    if not isinstance(value, kind) and not (none and value is None):
        wrong_type(field, value, wanted)


def items_of(
    field: str, value: object, kind: type[T] | tuple[type[T], ...], wanted: str
) -> tuple[T, ...]:
    """A list or tuple whose members are all of `kind`, as a tuple."""
    result: list[T] = []
    for index, member in enumerate(members_of(field, value, wanted)):
        if not isinstance(member, kind):
            wrong_type(f"{field}[{index}]", member, f"one of {wanted}")
        result.append(member)
    return tuple(result)


def members_of(field: str, value: object, wanted: str) -> tuple[object, ...]:
    """The members of a list or tuple. A string is refused."""
    if not isinstance(value, (list, tuple)):
        wrong_type(field, value, f"a list of {wanted}")
    return tuple(cast("Sequence[object]", value))
