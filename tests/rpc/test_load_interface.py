"""An author tests an interface in-process and gets what an agent would get."""

import asyncio
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seer.errors import ArgumentError, ResultError, ServeError, UnknownFunctionError
from seer.rpc._bundles import interface_files
from seer.testing import LoadedInterface, load_interface

Load = Callable[..., LoadedInterface]


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    def load_it(text: str, **options: Any) -> LoadedInterface:
        path = tmp_path / "interface.py"
        path.write_text(textwrap.dedent(text))
        return load_interface(path, **options)

    return load_it


def test_exposed_functions_are_called_as_an_agent_calls_them(load_text: Load) -> None:
    tools = load_text(
        '''
        path = get_model_path("google/gemma-2-9b")
        calls = []

        @expose
        def get_embedding(text: str, scale: float = 1) -> dict:
            """Get it."""
            calls.append(text)
            return {"embedding": (1, scale), "path": path}

        @expose
        def bad():
            return {"a": [object()]}
        ''',
        models={"google/gemma-2-9b": "/m/tiny"},
    )
    assert tools.get_embedding("hi", scale=2) == {"embedding": (1, 2.0), "path": "/m/tiny"}
    assert tools.module.calls == ["hi"]
    assert tools.get_embedding.__doc__ == "Get it."
    assert "get_embedding" in dir(tools)
    assert "bad() has no return hint" in tools.warnings[0]
    with pytest.raises(ArgumentError, match="parameter 'text': expected str"):
        tools.get_embedding(3)
    with pytest.raises(ResultError, match=r"bad\(\) returned .* result\['a'\]\[0\] is a object"):
        tools.bad()
    with pytest.raises(
        UnknownFunctionError, match="'calls' is not exposed; exposed: get_embedding"
    ):
        tools.calls  # noqa: B018
    with pytest.raises(AttributeError):
        getattr(tools, "_private")  # noqa: B009


def test_a_broken_file_is_the_error_that_serve_gives(load_text: Load) -> None:
    with pytest.raises(ServeError, match=r"interface.py:1: ZeroDivisionError"):
        load_text("1 / 0")


def test_every_kind_of_function_can_be_called(load_text: Load) -> None:
    tools = load_text("""
        from collections.abc import AsyncIterator, Iterator
        from dataclasses import dataclass, field
        import enum

        class Color(enum.Enum):
            RED = 1

        @dataclass
        class Node:
            name: str
            color: Color = Color.RED
            size: int = field(init=False, default=3)

        @expose
        async def waits(n: int) -> Node:
            return Node(str(n))
        @expose
        def streams(n: int) -> Iterator[int]:
            yield from range(n)
        @expose
        async def async_streams(node: Node) -> AsyncIterator[str]:
            yield node.name
        @expose
        def colors() -> list[Color]:
            return [Color.RED]
    """)

    async def use() -> tuple[Any, list[str]]:
        node = await tools.waits(3)
        return node, [text async for text in tools.async_streams(node)]

    module: Any = tools.module
    assert asyncio.run(use()) == (module.Node("3"), ["3"])
    assert list(tools.streams(3)) == [0, 1, 2]
    assert tools.colors() == [module.Color.RED]


def test_handles_keep_their_value_on_the_server(load_text: Load) -> None:
    tools = load_text("""
        from seer.rpc import Handle
        @expose
        def make(n: int) -> Handle:
            return [object()] * n
        @expose
        def made(n: int) -> dict:
            return {"h": Handle([n])}
        @expose
        def again(h: Handle) -> Handle:
            return h
        @expose
        def size(items: list) -> int:
            return len(items)
    """)
    handle = tools.make(3)
    assert tools.size(handle) == 3
    assert tools.again(handle) is handle
    assert tools.size(tools.made(1)["h"]) == 1


BATCHED = """
    import math
    @expose(batch=4)
    def f(texts: list[str], /, more: list[int], *, scale: float = 1.0) -> list[dict]:
        n = [len(t) * scale + OFFSET * len(texts) for t in texts]
        return [{"n": n, "m": (m, math.nan)} for n, m in zip(n, more)]
    @expose(batch=4)
    def g(xs: list[int]) -> list:
        return RESULT
    OFFSET = 0
    RESULT = None
"""


def test_a_batched_function_can_be_called_and_checked(load_text: Load) -> None:
    tools = load_text(BATCHED)
    assert tools.f("abc", 1, scale=2)["n"] == 6.0
    calls = [("a", 1), ("bb", 2), ("ccc", 3)]
    tools.check_batch("f", calls)
    module: Any = tools.module
    module.OFFSET = 1e-9
    tools.check_batch("f", calls)
    module.OFFSET = 1
    with pytest.raises(
        AssertionError, match=r"f\(\) call 0: result\['n'\] is 4.0 in the batch, 2.0"
    ):
        tools.check_batch("f", calls)


async def test_an_async_batched_function_can_be_awaited_and_checked(load_text: Load) -> None:
    tools = load_text("""
        import asyncio
        wrong = 0
        @expose(batch=4)
        async def f(xs: list[int], k: int, /, *, more: list[int] = (1,)) -> list[int]:
            await asyncio.sleep(0)
            return [x * k + m + wrong * len(xs) for x, m in zip(xs, more, strict=True)]
    """)
    assert await tools.f(2, 10) == 21
    tools.check_batch("f", [(1, 3), (2, 3)])
    module: Any = tools.module
    module.wrong = 1
    with pytest.raises(AssertionError, match=r"f\(\) call 0: result is 6 in the batch, 5 alone"):
        tools.check_batch("f", [(1, 3), (2, 3)])


@pytest.mark.parametrize(
    ("together", "alone", "message"),
    [
        ([{"a": 1}, 1], [{"b": 1}], r"result has the keys \['a'\] in the batch and \['b'\] alone"),
        ([[1], 1], [[1, 2]], "result has 1 items in the batch and 2 alone"),
        ([[1, [2]], 1], [[1, [3]]], r"result\[1\]\[0\] is 2 in the batch, 3 alone"),
        ([1, 1], [1.0], "result is 1 in the batch, 1.0 alone"),
        ([1, 1], [True], "result is 1 in the batch, True alone"),
    ],
)
def test_what_differs_in_a_batch_is_named(
    load_text: Load, together: list[Any], alone: list[Any], message: str
) -> None:
    tools = load_text(BATCHED.replace("return RESULT", "return RESULT[len(xs)]"))
    module: Any = tools.module
    module.RESULT = {1: alone, 2: together}
    with pytest.raises(AssertionError, match=message):
        tools.check_batch("g", [{"xs": 1}, {"xs": 2}])


def test_arrays_in_a_batch_are_compared_by_value(load_text: Load) -> None:
    tools = load_text("""
        import numpy as np
        @expose(batch=4)
        def f(xs: list[float]) -> list[np.ndarray]:
            return [np.full(3, x) for x in xs]
    """)
    tools.check_batch("f", [(1.0,), (2.0,)])


def test_a_batched_function_must_return_one_result_per_call(load_text: Load) -> None:
    tools = load_text(BATCHED)
    with pytest.raises(ResultError, match="must return a list of 1, one per call"):
        tools.g(1)


def test_a_batched_parameter_may_have_a_default_for_each_call(load_text: Load) -> None:
    tools = load_text(
        """
        from collections.abc import Sequence

        @expose(batch=4)
        def pick(x: list[int], *, seed: Sequence[int] = (7,)) -> list[list[int]]:
            return [[a, b] for a, b in zip(x, seed, strict=True)]
        """
    )
    assert tools.pick(1) == [1, 7]
    assert tools.pick(1, seed=3) == [1, 3]
    tools.check_batch("pick", [(1,), {"x": 2, "seed": 5}, (3,)])


def test_modules_beside_the_file_are_its_own_and_read_again_with_it(tmp_path: Path) -> None:
    file, beside = tmp_path / "interface.py", tmp_path / "_beside.py"
    file.write_text("from . import _beside\nfrom ._beside import f\n\nexpose(f)\n")
    beside.write_text("def f(x: int) -> int:\n    return x + 1\n")
    first = load_interface(file)
    beside.write_text("def f(x: int) -> int:\n    return x + 1000\n")
    second = load_interface(file)
    assert (first.f(1), second.f(1)) == (2, 1001)
    hashes = [one._interface.source_hash for one in (first, second)]  # pyright: ignore[reportPrivateUsage]
    assert hashes[0] != hashes[1]
    beside.write_text("broken = (")
    with pytest.raises(ServeError, match="SyntaxError"):
        load_interface(file)
    assert second.f(1) == 1001


def test_an_interface_travels_with_just_what_it_imports_from_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "interface.py"
    file.write_text("from ._a import x\nimport json\n")
    (tmp_path / "_a.py").write_text("def f():\n    from . import _b, interface\n")
    (tmp_path / "_b.py").write_text("")
    (tmp_path / "main.py").write_text("")
    assert set(interface_files(file)) == {"interface.py", "_a.py", "_b.py"}
    (tmp_path / "_b.py").write_text("from ._missing import y\n")
    with pytest.raises(ServeError, match=r"_b\.py:1: there is no '_missing\.py' beside it"):
        interface_files(file)
    (tmp_path / "_b.py").write_text("from ..above import y\n")
    with pytest.raises(ServeError, match="not other folders"):
        interface_files(file)
    file.write_text("def broken(:\n")
    assert set(interface_files(file)) == {"interface.py"}
    with pytest.raises(ServeError, match="cannot be read"):
        interface_files(tmp_path / "absent.py")


def test_an_error_in_the_place_of_a_batched_result_is_raised(load_text: Load) -> None:
    tools = load_text(
        """
        @expose(batch=4)
        def picky(x: list[int]) -> list[int]:
            return [ValueError(f"no {item}") if item < 0 else item for item in x]
        """
    )
    assert tools.picky(1) == 1
    with pytest.raises(ValueError, match="no -2"):
        tools.picky(-2)


def test_records_of_a_batch_may_differ_by_rounding(load_text: Load) -> None:
    tools = load_text(
        """
        from dataclasses import dataclass

        @dataclass
        class Reading:
            value: float
            label: str = "a"

        @expose(batch=4)
        def read(x: list[float]) -> list[Reading]:
            return [Reading(item + 1e-9 * len(x)) for item in x]

        @expose(batch=4)
        def mixed(x: list[float]) -> list[Reading]:
            return [Reading(item, "alone" if len(x) == 1 else "together") for item in x]
        """
    )
    tools.check_batch("read", [(1.0,), (2.0,)])
    with pytest.raises(AssertionError, match="label"):
        tools.check_batch("mixed", [(1.0,), (2.0,)])


def test_a_default_that_does_not_fit_its_hint_is_accepted_and_the_author_is_told(
    load_text: Load,
) -> None:
    tools = load_text(
        '''
        from dataclasses import dataclass

        @dataclass
        class Query:
            text: str = None
            top: int = 3

        @expose
        def search(category: str = None, layers: list[int] = "all", top: int = 3) -> list:
            """Search."""
            return [category, layers, top]

        @expose
        def ask(query: Query, note: dict = ()) -> list:
            """Ask."""
            return [query.text, query.top, note]

        @expose(batch=4)
        def both(texts: list[str] = (None,)) -> list:
            """Both."""
            return texts
        '''
    )
    assert tools.search() == [None, "all", 3]
    assert tools.search(None, layers="all") == [None, "all", 3]
    assert tools.search("a", [1]) == ["a", [1], 3]
    for wrong in ({"category": 1}, {"layers": "some"}, {"layers": None}, {"top": None}):
        with pytest.raises(ArgumentError):
            tools.search(**wrong)
    assert tools.ask({"text": None}) == [None, 3, ()]
    assert tools.both() is None
    told = "\n".join(tools.warnings)
    assert "default of 'category' is None, but its hint is str; write str | None" in told
    assert "search(): the default of 'layers' is 'all', but its hint is list[int]" in told
    assert "field 'text' of Query" in told and "'top'" not in told
    assert "ask(): the default of 'note' is (), but its hint is dict" in told


def test_configured_models_are_a_list_and_a_mapping(load_text: Load) -> None:
    tools = load_text(
        """
        models = list_configured_models()

        @expose
        def show() -> list:
            return list_configured_models()

        @expose
        def forms() -> list:
            return [models[0], models["a/b"], models.get("c"), dict(models), list(models.items())]
        """,
        models={"a/b": "/m/ab"},
    )
    assert tools.show() == ["a/b"]
    assert tools.forms() == ["a/b", "/m/ab", None, {"a/b": "/m/ab"}, [("a/b", "/m/ab")]]
    assert [*tools.module.models.values(), *tools.module.models.keys()] == ["/m/ab", "a/b"]


def test_a_tensor_on_a_gpu_arrives_as_it_does_at_a_caller(load_text: Load) -> None:
    pytest.importorskip("torch")
    tools = load_text(
        """
        from types import SimpleNamespace
        import torch

        class OnDevice(torch.Tensor):
            device = property(lambda self: SimpleNamespace(type="cuda"))

        @expose
        def read(count: int):
            return {"values": torch.arange(float(count)).as_subclass(OnDevice)}
        """
    )
    assert tools.read(3)["values"].tolist() == [0.0, 1.0, 2.0]
    assert tools.read(0)["values"].tolist() == []
