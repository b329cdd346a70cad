"""Tools from typed functions, and results as an agent is shown them. No protocol here."""

from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from seer.execution import ExecutionResult, Image, StreamText
from seer.tools import Tool, ToolContext, ToolFailure, ToolOutput, typed_tool
from seer.tools._session import LastLine, render
from seer.tools._values import TEXT_LIMIT, ValueText


class QuietContext:
    """Somebody who wants to hear nothing."""

    session = ""
    wants_progress = False

    async def report(self, seconds: float, message: str) -> None:
        raise AssertionError("nobody asked")

    def started(self, name: str, stop: object) -> None:
        """Take no notice."""


async def greet(
    context: ToolContext, name: str, times: int = 1, shout: bool | None = None
) -> ToolOutput:
    """Say hello.

    As often as it takes.

    Args:
        name: Whom to greet,
            by their first name.
        times: How often.
    """
    assert isinstance(context, QuietContext)
    return ToolOutput(text=" ".join([f"hello {name}"] * times) + ("!" if shout else ""))


@pytest.fixture
def tool() -> Tool:
    return typed_tool(greet)


def test_hints_and_docstring_become_schema_and_words(tool: Tool) -> None:
    assert tool.name == "greet"
    assert tool.description == "Say hello.\n\nAs often as it takes."
    properties = tool.input_schema["properties"]
    assert set(properties) == {"name", "times", "shout"}
    assert properties["name"] == {
        "type": "string",
        "description": "Whom to greet, by their first name.",
    }
    assert properties["times"]["default"] == 1
    assert tool.input_schema["required"] == ["name"]
    assert tool.input_schema["additionalProperties"] is False


async def test_arguments_are_checked_before_the_function_runs(tool: Tool) -> None:
    context = QuietContext()
    assert (await tool.handler({"name": "Ada", "times": 2}, context)).text == "hello Ada hello Ada"
    for arguments, problem in [
        ({}, "name: Field required"),
        ({"name": 3}, "name: "),
        ({"name": "x", "times": "many"}, "times: "),
        ({"name": "x", "what": 1}, "what: Extra inputs"),
    ]:
        with pytest.raises(ToolFailure, match=f"greet: .*{problem}"):
            await tool.handler(arguments, context)


class Shelf:
    """Keeps what is saved."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def save(self, name: str, data: bytes) -> str:
        self.files[name] = data
        return f"shelf/{name}"


async def shown(value: Any) -> tuple[ToolOutput, Shelf]:
    shelf = Shelf()
    return await ValueText("f-1", shelf.save, lambda _: None).result(value), shelf


async def test_json_values_are_shown_and_structured() -> None:
    result, _ = await shown({"a": [1, None, "ü"], 2: (True, float("inf"))})
    assert '"ü"' in result.text
    assert "Infinity" in result.text
    assert result.structured == {"result": {"a": [1, None, "ü"], "2": [True, "Infinity"]}}
    assert (await shown("plain text"))[0].text == "plain text"


async def test_a_large_array_becomes_a_summary_and_a_file() -> None:
    array = np.arange(600, dtype=np.float32).reshape(20, 30)
    array[0, 0] = np.nan
    result, shelf = await shown({"x": array})
    assert "array float32 20x30, min 1, max 599, mean 300, 1 not finite" in result.text
    assert "saved as shelf/f-1-1.npy" in result.text
    loaded = np.load(__import__("io").BytesIO(shelf.files["f-1-1.npy"]))
    np.testing.assert_array_equal(loaded, array)


async def test_a_small_array_is_shown_whole() -> None:
    result, shelf = await shown(np.array([[1, 2], [3, 4]]))
    assert result.structured == {
        "result": {"dtype": "int64", "shape": [2, 2], "values": [[1, 2], [3, 4]]}
    }
    assert not shelf.files
    assert (await shown(np.float64(2.5)))[0].text == "2.5"


async def test_an_image_becomes_an_image() -> None:
    result, _ = await shown([Pillow.new("CMYK", (3000, 10))])
    (image,) = result.images
    assert (image.mime, image.width) == ("image/png", 1568)
    assert "[image 1, 3000x10]" in result.text
    assert result.structured is None, "clients would show it instead of the image"


async def test_bytes_and_long_results_become_files() -> None:
    result, shelf = await shown(b"\0\1")
    assert result.text == "[2 bytes, saved as shelf/f-1-1.bin]"
    result, shelf = await shown("x" * (TEXT_LIMIT + 1))
    assert len(result.text) < TEXT_LIMIT
    assert "the whole result is in shelf/f-1-1.json" in result.text
    assert len(shelf.files["f-1-1.json"]) == TEXT_LIMIT + 1


def test_a_running_result_says_how_to_get_the_rest() -> None:
    result = render(ExecutionResult(result_id="e3", status="running", text="so far\n", duration=7))
    assert result.text.startswith("[running; 7 s so far.")
    assert "get_result(result_id='e3')" in result.text
    assert result.text.endswith("so far\n")
    assert not result.failed


def test_results_are_never_silent() -> None:
    done = render(ExecutionResult(result_id="e1", status="ok", duration=0.5))
    assert done.text == "[done in 0.50 s, no output]"
    failed = render(ExecutionResult(result_id="e1", status="error", text="boom", exit_code=3))
    assert failed.text == "boom\n[exit code 3]"
    assert failed.failed
    assert failed.structured is None
    assert not render(ExecutionResult(result_id="e1", status="error"), failed=False).failed


def test_progress_is_the_last_line_that_was_printed() -> None:
    progress = LastLine()
    assert progress.message == ""
    progress(StreamText(name="stdout", text="step 1\n10%\r"))
    progress(StreamText(name="stdout", text="20%\r"))
    assert progress.message == "20%"
    assert progress.news.is_set()


def test_images_know_when_they_are_large() -> None:
    assert Image(mime="image/png", data=b"", width=2000, height=1).is_large
    assert not Image(mime="image/png", data=b"", width=20, height=1).is_large
