"""Prompts, skills, docstrings and JSON Schemas agree with the interface."""

import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from seer.errors import ArgumentError
from seer.rpc.interface._load import load
from seer.rpc.interface._schema import Function, Parameter, Schema
from seer.rpc.library._docs import render_prompt, render_skill
from seer.rpc.library._json_schema import (
    description,
    hint_schema,
    parse_docstring,
    result_schema,
    to_call,
    tool_schema,
)
from seer.rpc.values._hints import Hint
from seer.rpc.values._types import Field, TypeDef

SOURCE = '''
"""Tools for a model.

With care.
"""
import enum
from dataclasses import dataclass
from typing import Annotated, Iterator, NamedTuple, NotRequired, TypedDict

class Color(enum.Enum):
    """Colours.

    Two of them.
    """
    RED = "red"

class Pair(NamedTuple):
    a: int
    b: str = "b"

class Options(TypedDict):
    name: NotRequired[str]
    pair: Pair

@dataclass
class Node:
    children: list["Node"]
    color: Color = Color.RED

MARK = object()

@expose(timeout=3, max_calls=5, cost=2)
def get(
    text: str, layer: Annotated[int, "which layer"] = 3, node: Node | None = None, x: object = MARK
) -> dict:
    """Get ```activations```.

    Args:
        text: What to read,
            in two lines.
        layer: not this

    Returns:
        A dict.
    """

@expose
def stream(
    options: Options, /, *rest: int, mode: Color = Color.RED, **more: float
) -> Iterator[Node]:
    yield Node([])

@expose
def plain(a: int = 1, b: bytes = b"x", c: tuple = (1,)) -> float: ...
'''


@pytest.fixture
def schema(tmp_path: Path) -> Schema:
    path = tmp_path / "interface.py"
    path.write_text(SOURCE)
    return Schema.from_json(load(str(path), "Model_tools").schema())


def test_the_prompt_has_every_signature_and_docstring(schema: Schema) -> None:
    text = render_prompt(schema)
    assert text.startswith("# `Model_tools`\n\nTools for a model.\n\nWith care.\n")
    for part in (
        "`import Model_tools`",
        "```python\ndef get(text: str, layer: int = 3, node: Node | None = None, x: Any = ...)"
        " -> dict\n```",
        "Get ```activations```.",
        "(at most 3 s per call; at most 5 calls; one call counts as 2.)",
        "`...` stands for a default that the server fills in.",
        "-> Iterator[Node]\n```\n\n(results are streamed.)",
        "## Types",
        "class Color(Enum):\n    # Colours.\n    RED = 'red'",
        "class Pair(NamedTuple):\n    a: int\n    b: str = 'b'",
        "class Options(TypedDict):\n    name: NotRequired[str]\n    pair: Pair",
        "class Node:\n    children: list[Node]\n    color: Color = ...",
    ):
        assert part in text


def test_a_prompt_of_a_bare_interface_is_short() -> None:
    function = Function("f", (), Hint("literal", detail=("```",)))
    text = render_prompt(Schema("tools", {"f": function}))
    assert "Types" not in text
    assert "````python\ndef f() -> Literal['```']\n````" in text


def test_the_skill_has_front_matter_that_yaml_reads(schema: Schema) -> None:
    text = render_skill(schema)
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "name": "model-tools",
        "description": "Tools for a model. Functions: get, stream, plain.",
    }
    assert body.strip() == render_prompt(schema).strip()
    schema.doc = 'quotes " : #\nmore'
    front = yaml.safe_load(render_skill(schema).split("---\n", 2)[1])
    assert front["description"].startswith('quotes " : # Functions')
    bare = Schema("___", {"f": Function("f", (), Hint("any"))})
    front = yaml.safe_load(render_skill(bare).split("---\n", 2)[1])
    assert front == {"name": "interface", "description": "Call ___: f."}


# --- docstrings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "description", "parameters"),
    [
        ("", "", {}),
        ("Just this.", "Just this.", {}),
        (
            """Do it.

            Args:
                a: First,
                    goes on.

                b (int): Second.
                **kwargs: Others.

            Returns:
                All.
            """,
            "Do it.\n\nReturns:\n    All.",
            {"a": "First, goes on.", "b": "Second.", "kwargs": "Others."},
        ),
        ("X\n\nArgs:\n    no colon here\n", "X", {}),
        ("X\n\nArgs:\n", "X", {}),
        (
            """Do it.

            Parameters
            ----------
            a : int
                First.
            b, c
                Both.

            Returns
            -------
            int
            """,
            "Do it.\n\nReturns\n-------\nint",
            {"a": "First.", "b": "Both.", "c": "Both."},
        ),
        ("X\n\nParameters\n----------\na\n    A.\n? odd", "X\n\n? odd", {"a": "A."}),
        ("Parameters\n----------\na\n    A.", "", {"a": "A."}),
        ("Parameters\nare here", "Parameters\nare here", {}),
        (
            "Do it.\n\n:param int a: First,\n    more.\n:param b: Second.\n:returns: x",
            "Do it.\n\n:returns: x",
            {"a": "First, more.", "b": "Second."},
        ),
    ],
)
def test_docstrings_are_taken_apart(
    text: str, description: str, parameters: dict[str, str]
) -> None:
    assert parse_docstring(textwrap.dedent(text)) == (description, parameters)


# --- JSON Schema -----------------------------------------------------------------------------


def test_tools_have_schemas_of_arguments_and_results(schema: Schema) -> None:
    get, stream, plain = schema.functions.values()
    assert description(get) == "Get ```activations```.\n\nReturns:\n    A dict."
    properties = tool_schema(get)["properties"]
    assert properties["text"] == {"type": "string", "description": "What to read, in two lines."}
    assert properties["layer"] == {"type": "integer", "description": "which layer", "default": 3}
    assert properties["node"]["anyOf"] == [{"$ref": "#/$defs/Node"}, {"type": "null"}]
    assert properties["x"] == {}
    assert tool_schema(get)["required"] == ["text"]
    assert tool_schema(get)["additionalProperties"] is False
    assert set(tool_schema(get)["$defs"]) == {"Node", "Color"}
    assert tool_schema(get)["$defs"]["Node"]["required"] == ["children"]
    assert tool_schema(get)["$defs"]["Color"]["enum"] == ["red"]
    assert result_schema(get) == {"type": "object"}
    assert description(stream).startswith("stream(options: Options, /,")
    assert tool_schema(stream)["properties"]["rest"] == {
        "type": "array",
        "items": {"type": "integer"},
    }
    assert tool_schema(stream)["additionalProperties"] == {"type": "number"}
    assert tool_schema(stream)["$defs"]["Pair"] == {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "minItems": 1,
        "maxItems": 2,
    }
    assert result_schema(stream)["items"] == {"$ref": "#/$defs/Node"}
    assert tool_schema(plain)["properties"] == {
        "a": {"type": "integer", "default": 1},
        "b": {"type": "string", "contentEncoding": "base64"},
        "c": {"type": "array", "items": {}},
    }
    assert "required" not in tool_schema(plain)


def test_a_note_on_a_reference_is_kept_beside_it() -> None:
    parameter = Parameter("c", "keyword_only", Hint("named", detail="C"), note="which")
    function = Function("f", (parameter,), Hint("any"), types={"C": TypeDef("C", "enum", ())})
    found = tool_schema(function)["properties"]["c"]
    assert found == {"allOf": [{"$ref": "#/$defs/C"}], "description": "which"}


def test_flags_may_be_combined_by_tools() -> None:
    members = (Field("A", Hint("any"), default="1"), Field("B", Hint("any"), default="2"))
    flags = TypeDef("C", "enum", members, doc="Rights.", base="int_flag")
    parameter = Parameter("c", "positional_or_keyword", Hint("named", detail="C"))
    function = Function("f", (parameter,), Hint("any"), types={"C": flags})
    assert tool_schema(function)["$defs"]["C"] == {
        "type": "integer",
        "description": "Rights.\nThe sum of any of: A = 1, B = 2",
    }


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Hint("list"), {"type": "array"}),
        (
            Hint("set", (Hint("int"),)),
            {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        ),
        (Hint("dict"), {"type": "object"}),
        (
            Hint("mapping", (Hint("str"), Hint("bool"))),
            {"type": "object", "additionalProperties": {"type": "boolean"}},
        ),
        (
            Hint("tuple", (Hint("int"),)),
            {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 1, "maxItems": 1},
        ),
        (Hint("literal", detail=("a", b"b", None)), {"enum": ["a", "b", None]}),
        (Hint("datetime"), {"type": "string", "format": "date-time"}),
    ],
)
def test_hints_become_json_schemas(hint: Hint, expected: dict[str, Any]) -> None:
    assert hint_schema(hint) == expected


def test_the_dtype_of_an_array_is_told() -> None:
    assert hint_schema(Hint("ndarray", detail="<f4"))["description"].endswith("(dtype <f4)")
    assert "dtype" not in hint_schema(Hint("ndarray"))["description"]


@pytest.fixture
def mixed() -> Function:
    integer = Hint("int")
    return Function(
        "f",
        (
            Parameter("a", "positional_only", integer),
            Parameter("b", "positional_only", integer, default="1"),
            Parameter("c", "positional_or_keyword", integer, default="1"),
            Parameter("rest", "var_positional", integer),
            Parameter("k", "keyword_only", integer, default="1"),
            Parameter("more", "var_keyword", integer),
        ),
        integer,
    )


@pytest.mark.parametrize(
    ("arguments", "args", "kwargs"),
    [
        ({"a": 1}, [1], {}),
        ({"a": 1, "b": 2, "c": 3, "k": 4, "z": 5}, [1, 2], {"c": 3, "k": 4, "z": 5}),
        ({"a": 1, "b": 2, "c": 3, "rest": [4, 5]}, [1, 2, 3, 4, 5], {}),
        ({"a": 1, "rest": []}, [1], {}),
        ({}, [], {}),
    ],
)
def test_an_object_of_arguments_becomes_a_call(
    mixed: Function, arguments: dict[str, Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    assert to_call(mixed, arguments) == (args, kwargs)


def test_objects_that_stand_for_no_call_are_refused(mixed: Function) -> None:
    with pytest.raises(ArgumentError, match="needs an argument for 'a' when 'b' is given"):
        to_call(mixed, {"b": 1})
    with pytest.raises(ArgumentError, match="'rest': expected a list"):
        to_call(mixed, {"a": 1, "rest": "ab"})
