"""Runs many items through a model in batches of bounded size.

A call that fails must not affect the other calls of its batch. So its error takes the place of its
result, and the gate raises the error for that caller only.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from seer.errors import ModelInputError

from ._limits import BATCH_TOKENS, MAX_TOKENS

T = TypeVar("T")
R = TypeVar("R")


def prepare_each(prepare: Callable[..., T], *columns: Sequence[Any]) -> list[T | ModelInputError]:
    """Prepare the calls of a batch one by one. If a call fails, its item is the error.

    Args:
        prepare: Called with one item of each column.
        columns: The batched arguments.
    """

    def one(*items: Any) -> T | ModelInputError:
        try:
            return prepare(*items)
        except ModelInputError as error:
            return error

    return [one(*items) for items in zip(*columns, strict=True)]


def run_each(
    prepared: Sequence[T | ModelInputError],
    length: Callable[[T], int],
    run: Callable[[list[T]], Sequence[R]],
    *,
    most: int = BATCH_TOKENS,
) -> list[R]:
    """Run the items that could be prepared, in batches of similar length.

    Args:
        prepared: The items, or their errors.
        length: The length of an item.
        run: Runs one batch.
        most: The largest padded size of a batch: its longest item's length times its number of
            items.

    Returns:
        One result per item, in order. The result of an error is the error.
    """
    results: list[Any] = list(prepared)
    good = [(i, item) for i, item in enumerate(prepared) if not isinstance(item, ModelInputError)]
    for group in split(good, lambda pair: length(pair[1]), most):
        found = run([item for _, item in group])
        for (i, _), result in zip(group, found, strict=True):
            results[i] = result
    return results


def split(
    items: Sequence[T], length: Callable[[T], int], most: int = BATCH_TOKENS
) -> Iterator[list[T]]:
    """Groups of items of similar length, with a padded size of at most `most`, or single items."""
    group: list[T] = []
    for item in sorted(items, key=length, reverse=True):
        # The first item of a group is its longest.
        if group and length(group[0]) * (len(group) + 1) > most:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def check_total(rows: Sequence[Sequence[int]]) -> None:
    """Check how many tokens one call has.

    Raises:
        ModelInputError: There are too many.
    """
    total = sum(map(len, rows))
    if total > MAX_TOKENS:
        raise ModelInputError(
            f"the texts have {total} tokens together; one call may have {MAX_TOKENS}"
        )
