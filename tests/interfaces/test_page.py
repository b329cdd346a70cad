"""The documentation page lists the functions that exist."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.conftest import Case

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "interfaces.md"


def test_the_page_lists_every_function_with_its_parameters(llama: Case) -> None:
    functions: Any = llama.tools._interface.functions
    listed = dict(re.findall(r"^\| `(\w+)\((.*?)\)`", PAGE.read_text(), re.MULTILINE))
    assert listed.keys() == functions.keys()
    for name, text in listed.items():
        if text == "...":
            continue
        parts: list[str] = []
        for parameter in functions[name].parameters:
            if parameter.kind == "keyword_only" and "*" not in parts:
                parts.append("*")
            default = "" if parameter.default is None else f"={parameter.default}"
            parts.append(parameter.name + default)
        assert text.replace('"', "'") == ", ".join(parts), name
