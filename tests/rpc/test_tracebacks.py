"""What a caller sees of an exposed function's traceback, and what the record keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from seer.errors import RemoteError
from tests.rpc.serving import Served, serving

pytestmark = pytest.mark.full

SOURCE = """
    from collections.abc import Iterator

    def inner(value: int) -> int:
        return 1 // value  # the secret of the source

    @expose
    def fail() -> int:
        return inner(0)

    @expose
    def chained() -> int:
        try:
            return inner(0)
        except ZeroDivisionError as error:
            error.add_note("a note")
            raise ValueError("outer") from error  # the secret of the source

    @expose
    def stream() -> Iterator[int]:
        yield 1
        yield inner(0)
"""


def raised(served: Served, function: str) -> str:
    """The traceback that a caller sees."""
    gate = served.gate()
    with pytest.raises(ArithmeticError if function != "chained" else ValueError) as caught:
        if function == "stream":
            list(gate.stream(function))
        else:
            gate.call(function)
    assert isinstance(caught.value, RemoteError)
    return caught.value.remote_traceback


def recorded(served: Served) -> dict[str, Any]:
    """The last call in the record."""
    return served.recorded(served.followed)[-1]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("function", ["fail", "chained", "stream"])
def test_source_lines_and_paths_stay_on_the_server_and_in_the_record(
    tmp_path: Path, function: str, replicas: int
) -> None:
    record = str(tmp_path / "record")
    with serving(SOURCE, record=record, replicas=replicas) as served:
        served.follow("a")
        shown = raised(served, function)
        assert ", in inner\n" in shown
        assert f", in {function}\n" in shown
        assert "ZeroDivisionError: " in shown
        assert ("a note\n" in shown) == ("direct cause" in shown) == (function == "chained")
        line = recorded(served)
        for text in (shown, json.dumps(line["result"])):
            assert "secret" not in text
            assert "File" not in text
            assert str(served.folder) not in text
        assert "the secret of the source" in line["traceback"]
        assert str(served.file) in line["traceback"]


def test_source_lines_are_shown_where_the_owner_says_so() -> None:
    with serving(SOURCE, tracebacks=True) as served:
        assert "the secret of the source" in raised(served, "fail")


def test_nothing_is_shown_where_tracebacks_are_off(tmp_path: Path) -> None:
    with serving(SOURCE, tracebacks=False, record=str(tmp_path / "record")) as served:
        served.follow("a")
        assert raised(served, "fail") == ""
        assert "the secret of the source" in recorded(served)["traceback"]
