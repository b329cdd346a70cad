"""Loading interface files: what works, and the error for everything else."""

# pyright: reportPrivateUsage=false

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seer.rpc
from seer.errors import ModelError, ServeError
from seer.rpc.interface import _expose
from seer.rpc.interface._load import Interface, load
from seer.rpc.interface._schema import Schema

Load = Callable[..., Interface]


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads an interface from source text."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(_expose, "_latest", _expose._outside)

    def load_it(text: str, name: str = "tools", **options: Any) -> Interface:
        path = tmp_path / "interface.py"
        path.write_text(textwrap.dedent(text))
        return load(str(path), name, **options)

    return load_it


def signatures(interface: Interface) -> list[str]:
    return [function.signature() for function in interface.functions.values()]


def test_only_marked_functions_are_exposed(load_text: Load) -> None:
    interface = load_text('''
        """Tools."""
        cache = {}

        @expose
        def get(text: str, layer: int = 3) -> dict:
            """Get it."""
            return helper(text)

        def helper(text):
            cache[text] = cache.get(text, 0) + 1
            return cache

        @expose(timeout=2.5, idempotent=True)
        def other() -> None:
            pass
    ''')
    assert signatures(interface) == [
        "get(text: str, layer: int = 3) -> dict",
        "other() -> None",
    ]
    assert interface.description.doc == "Tools."
    assert interface.functions["get"].doc == "Get it."
    options = interface.functions["other"].options
    assert options.to_json() == {"timeout": 2.5, "idempotent": True}
    target = interface.functions["get"].target
    assert target is not None
    assert target("a") == {"a": 1}
    assert target("a") == {"a": 2}


def test_names_can_be_imported_instead_of_injected(load_text: Load) -> None:
    interface = load_text(
        """
        from seer.rpc import Handle, expose, get_model_path, keep, list_configured_models
        path = get_model_path("org/name")
        names = list_configured_models()

        @expose
        def f() -> Handle: ...
        """,
        models={"org/name": "/models/org--name"},
    )
    assert interface.module.path == "/models/org--name"
    assert interface.module.names == ["org/name"]
    assert signatures(interface) == ["f() -> Handle"]


def test_every_kind_of_parameter_and_function_is_described(load_text: Load) -> None:
    interface = load_text("""
        from collections.abc import AsyncIterator, Iterable
        from typing import Generator, NoReturn

        @expose
        def all_kinds(
            a: int, /, b: str = "x", *rest: float, c: bool, d: bytes = b"", **more: int
        ) -> None: ...
        @expose
        def only(a: int, b: int = 1, /) -> int: ...
        @expose
        def keywords(*, a: int) -> int: ...
        @expose
        async def waits(a: int) -> str: ...
        @expose
        def streams(n: int) -> Generator[str, None, None]:
            yield "x"
        @expose
        def any_stream() -> Iterable:
            yield 1
        @expose
        async def async_streams() -> AsyncIterator[int]:
            yield 1
        @expose
        def hands_on() -> Generator[int, None, None]:
            return (i for i in [1])
        @expose
        def never() -> NoReturn: ...
    """)
    assert signatures(interface) == [
        "all_kinds(a: int, /, b: str = 'x', *rest: float, c: bool, d: bytes = b'', **more: int)"
        " -> None",
        "only(a: int, b: int = 1, /) -> int",
        "keywords(*, a: int) -> int",
        "waits(a: int) -> str",
        "streams(n: int) -> Iterator[str]",
        "any_stream() -> Iterator[Any]",
        "async_streams() -> Iterator[int]",
        "hands_on() -> Iterator[int]",
        "never() -> None",
    ]
    kinds = {n: (f.is_async, f.is_generator) for n, f in interface.functions.items()}
    assert kinds["waits"] == (True, False)
    assert kinds["streams"] == (False, True)
    assert kinds["async_streams"] == (True, True)
    assert kinds["hands_on"] == (False, True)


def test_decorated_functions_are_described_by_the_function_inside(load_text: Load) -> None:
    interface = load_text("""
        import functools

        def logged(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return ("logged", function(*args, **kwargs))
            return wrapper

        def awaited(function):
            @functools.wraps(function)
            async def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper

        @expose
        @logged
        def f(x: int) -> tuple:
            "Doc."
            return x

        @expose
        @awaited
        def g(x: int) -> int:
            return x
    """)
    assert signatures(interface) == ["f(x: int) -> tuple[Any, ...]", "g(x: int) -> int"]
    f = interface.functions["f"]
    assert f.doc == "Doc."
    assert f.target is not None
    assert f.target(3) == ("logged", 3)
    assert interface.functions["g"].is_async


def test_defaults_that_are_no_literals_stay_on_the_server(load_text: Load) -> None:
    interface = load_text("""
        import math
        @expose
        def f(
            a: float = math.pi,
            b: float = math.inf,
            c: object = object(),
            d: list = [1, (2, None)],
            e: dict = {"a": {"b": b"c"}},
            g: str = "x" * 600,
            h: object = {object()},
        ) -> None: ...
    """)
    assert [p.default for p in interface.functions["f"].parameters] == [
        "3.141592653589793",
        "...",
        "...",
        "[1, (2, None)]",
        "{'a': {'b': b'c'}}",
        "...",
        "...",
    ]


def test_a_default_that_does_not_fit_its_hint_widens_it(load_text: Load) -> None:
    interface = load_text("""
        @expose
        def f(a: str = None, b: list[int] = "all", c: dict = (), d: float = 1) -> None: ...
    """)
    assert signatures(interface) == [
        "f(a: str | None = None, b: list[int] | Literal['all'] = 'all', "
        "c: dict = ..., d: float = 1) -> None"
    ]


def test_postponed_annotations_and_forward_references_are_resolved(load_text: Load) -> None:
    interface = load_text("""
        from __future__ import annotations
        from dataclasses import dataclass
        from typing import Annotated, Optional

        @expose
        def f(
            node: Node, other: Optional["Node"] = None, layer: Annotated[int, "which"] = 0
        ) -> list[Node]: ...

        @dataclass
        class Node:
            name: str
            children: list[Node]
    """)
    f = interface.functions["f"]
    assert f.signature() == "f(node: Node, other: Node | None = None, layer: int = 0) -> list[Node]"
    assert f.parameters[2].note == "which"
    assert list(interface.description.types) == ["Node"]


def test_a_missing_return_hint_is_a_warning_that_names_the_function(load_text: Load) -> None:
    interface = load_text("""
        @expose
        def f():
            return 1

        @expose
        def g(n: int):
            yield n
    """)
    assert [w.partition("interface.py:")[2] for w in interface.warnings] == [
        "2: f() has no return hint; any sendable value may come back",
        "6: g() has no return hint; any sendable value may come back",
    ]
    assert interface.functions["f"].returns.kind == "any"


def test_batched_functions_are_described_as_one_call(load_text: Load) -> None:
    interface = load_text("""
        from collections.abc import Sequence
        @expose(batch=8, batch_wait=0.01)
        def f(texts: list[str], more: Sequence[int], any: list, layer: int = 3) -> list[float]: ...
        @expose(batch=2)
        def g(texts: list[str]) -> list: ...
        @expose(batch=2)
        def h(texts: list[str]): ...
    """)
    f = interface.functions["f"]
    assert f.signature() == "f(texts: str, more: int, any: Any, layer: int = 3) -> float"
    assert [p.batched for p in f.parameters] == [True, True, True, False]
    assert [interface.functions[n].returns.kind for n in "gh"] == ["any", "any"]


# --- what goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = (", 1, r"SyntaxError: '\(' was never closed"),
        ("import no_such_module\n", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n\nraise ValueError('bad')\n", 3, "ValueError: bad"),
        ("x = 1\nassert False\n", 2, "AssertionError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("def f():\n    1 / 0\n\nf()\n", 2, "ZeroDivisionError"),
        ("x = 1\n", None, "no function is exposed; mark functions with @expose"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("exec('x = (')\n", 1, "SyntaxError"),
        ("x = 1\ny = '\0'\n", 2, "there is a null byte here"),
        ("@expose\ndef f(a, b: int) -> int: ...\n", 1, r"f\(\): parameter 'a' has no type hint"),
        (
            "@expose\ndef f(*args, **kwargs) -> int: ...\n",
            1,
            r"parameter '\*args' has no type hint; decorate with functools.wraps.*\n"
            r"  line 1: f\(\): parameter '\*\*kwargs'",
        ),
        (
            "@expose\ndef f(x: 'Missing') -> int: ...\n",
            1,
            "the hint of parameter 'x': 'Missing' cannot be resolved .NameError",
        ),
        ("class A: ...\n@expose\ndef f(x: A) -> int: ...\n", 2, "a class the gate cannot build"),
        (
            "class A: ...\n@expose\ndef f() -> A: ...\n",
            2,
            r"f\(\): the return hint: .*A is a class",
        ),
        (
            "from dataclasses import dataclass\nclass A: ...\n@dataclass\nclass B:\n    a: A\n"
            "@expose\ndef f(b: B) -> int: ...\n",
            6,
            "field 'a' of B: .*A is a class the gate cannot build",
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass B:\n    a: 'Nope'\n"
            "@expose\ndef f(b: B) -> int: ...\n",
            5,
            "the hints of B cannot be resolved",
        ),
        (
            "@expose\ndef f() -> int: ...\n@expose\ndef f() -> str: ...\n",
            3,
            r"f\(\) is exposed twice; the first is in line 1",
        ),
        (
            "x = 1\n@expose\nclass A: ...\n",
            2,
            "@expose takes a function written with `def`, not <class",
        ),
        ("x = 1\nexpose(lambda: 1)\n", 2, "not a lambda: it has no name"),
        ("class A:\n    @expose\n    def f(self) -> int: ...\n", 2, "A.f is a method of a class"),
        ("x = 1\nexpose(len)\n", 2, "@expose takes a function written with `def`"),
        ("import functools\nexpose(functools.partial(print))\n", 2, "written with `def`"),
        (
            "x = 1\n@expose(timeout=-1)\ndef f() -> int: ...\n",
            2,
            r"expose\(timeout=-1\): it must be",
        ),
        ("@expose(timeout=0)\ndef f() -> int: ...\n", 1, "a number, more than 0"),
        ("@expose(max_calls=0)\ndef f() -> int: ...\n", 1, r"expose\(max_calls=0\)"),
        (
            "@expose(max_concurrency=1.5)\ndef f() -> int: ...\n",
            1,
            r"expose\(max_concurrency=1.5\)",
        ),
        ("@expose(batch=True)\ndef f() -> int: ...\n", 1, r"expose\(batch=True\)"),
        ("@expose(cost='a')\ndef f() -> int: ...\n", 1, r"expose\(cost='a'\)"),
        ("@expose(stateful=1)\ndef f() -> int: ...\n", 1, r"expose\(stateful=1\)"),
        ("@expose(retries=1)\ndef f() -> int: ...\n", 1, "no such option"),
        ("@expose\ndef _f() -> int: ...\n", 1, "its name says that it is private"),
        ("@expose\ndef budget() -> int: ...\n", 1, "'budget' is taken in the library"),
        ("@expose\ndef list() -> int: ...\n", 1, "'list' is taken in the library"),
        (
            "def f() -> int: ...\nf.__name__ = 'a b'\nexpose(f)\n",
            1,
            "'a b' is not a name that a caller could write",
        ),
        ("@expose\ndef größe() -> int: ...\n", 1, r"größe\(\) needs a name of plain letters"),
        (
            "import enum\nclass f(enum.Enum):\n    A = 1\n"
            "_f = f\n@expose\ndef f(x: _f) -> int: ...\n",
            5,
            "the class f in a hint needs another name; 'f' is taken",
        ),
        (
            "import enum\nclass Any(enum.Enum):\n    A = 1\n@expose\ndef f(x: Any) -> int: ...\n",
            4,
            "the class Any in a hint needs another name",
        ),
        ("@expose\ndef f() -> int:\n    yield 1\n", 1, r"a generator returns Iterator\[...\]"),
        (
            "@expose(batch=2)\ndef f(x: int) -> list: ...\n",
            1,
            "at least one parameter must be a list",
        ),
        ("@expose(batch=2)\ndef f(x: list[int]) -> int: ...\n", 1, "must return a list with one"),
        ("@expose(batch=2)\ndef f(x: list[int] = []) -> list: ...\n", 1, "a tuple of one item"),
        ("@expose(batch=2)\ndef f(x: list, *a: int) -> list: ...\n", 1, "cannot be batched"),
        ("@expose(batch=2)\ndef f(x: list):\n    yield x\n", 1, "a generator cannot be batched"),
        (
            "@expose(batch=2, max_concurrency=2)\nasync def f(x: list[int]) -> list: ...\n",
            1,
            r"f\(\): batch= and max_concurrency= do not go together",
        ),
        ("x = keep('a', dict)\n", 1, "NameError: .*; write `from seer.rpc import keep`"),
        ("get_model_path('a/b')\n", 1, "no model 'a/b' is configured; configured: 'org/name'"),
    ],
)
def test_a_file_that_cannot_be_served_is_an_error_with_line_and_reason(
    load_text: Load, text: str, line: int | None, message: str
) -> None:
    modules = set(sys.modules)
    with pytest.raises(ServeError, match=message) as caught:
        load_text(text, name="broken", models={"org/name": "/m"})
    assert caught.value.file.endswith("interface.py")
    assert caught.value.line == line
    assert "_interface.py" not in caught.value.remote_traceback
    assert "interface_broken" not in set(sys.modules) - modules


def test_all_problems_of_signatures_are_told_together(load_text: Load) -> None:
    with pytest.raises(ServeError) as caught:
        load_text("""
            @expose
            def f(a, b) -> int: ...
            @expose
            def g(c) -> int: ...
        """)
    assert caught.value.line == 2
    for part in ("'a'", "'b'", "line 4: g(): parameter 'c'"):
        assert part in str(caught.value)


def test_the_traceback_shows_the_file_and_what_it_called(load_text: Load) -> None:
    with pytest.raises(ServeError) as caught:
        load_text("import json\n\ndef f():\n    json.loads('{')\n\nf()\n")
    trace = caught.value.remote_traceback
    assert caught.value.line == 4
    assert trace.index("line 6") < trace.index("line 4") < trace.index("decoder.py")


@pytest.mark.parametrize("name", ["a-b", "", "class", "1a"])
def test_a_name_that_cannot_be_imported_is_refused(load_text: Load, name: str) -> None:
    with pytest.raises(ServeError, match="cannot be imported; give a Python name"):
        load_text("@expose\ndef f() -> int: ...", name=name)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="cannot be read: No such file"):
        load(str(tmp_path / "none.py"), "tools")


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("interface.py").write_text("@expose\ndef f() -> int: ...")
    assert signatures(load("interface.py", "tools")) == ["f() -> int"]


def test_a_failed_load_leaves_the_module_of_the_one_before(load_text: Load) -> None:
    first = load_text("@expose\ndef f() -> int: ...")
    for broken in ("1 / 0", "x = 1", "@expose\ndef f(x) -> int: ..."):
        with pytest.raises(ServeError):
            load_text(broken)
        assert sys.modules["interface_tools"] is first.module


# --- helpers of an interface -----------------------------------------------------------------


def test_a_file_beside_the_interface_can_be_imported_but_exposes_nothing(
    load_text: Load, tmp_path: Path
) -> None:
    (tmp_path / "beside_it.py").write_text(
        "from seer.rpc import expose, get_model_path\n"
        "where = get_model_path('org/name')\n"
        "@expose\ndef hidden() -> int: ...\n"
    )
    interface = load_text(
        "import beside_it\n@expose\ndef f() -> int: ...\n", models={"org/name": "/m/x"}
    )
    assert list(interface.functions) == ["f"]
    assert sys.modules["beside_it"].where == "/m/x"
    del sys.modules["beside_it"]


def test_an_imported_function_is_exposed_when_the_file_says_so(load_text: Load) -> None:
    interface = load_text("""
        from textwrap import dedent
        dedent.__annotations__.update(text=str)
        expose(dedent)
        expose(dedent)
    """)
    assert list(interface.functions) == ["dedent"]


def test_a_function_made_in_a_function_can_be_exposed(load_text: Load) -> None:
    interface = load_text("""
        def make(n):
            def add(x: int) -> int:
                return x + n
            return expose(add)
        make(3)
    """)
    target = interface.functions["add"].target
    assert target is not None
    assert target(4) == 7


def test_hidden_models_go_by_their_alias(load_text: Load) -> None:
    interface = load_text(
        '''
        """Tools for google/gemma-2-9b."""
        path = get_model_path("model_0")
        same = get_model_path("google/gemma-2-9b")
        names = list_configured_models()

        @expose
        def f(name: str = "google/gemma-2-9b") -> dict:
            """Reads /models/google--gemma-2-9b, that is Gemma-2-9B."""
        ''',
        models={"google/gemma-2-9b": "/models/google--gemma-2-9b", "open/one": "/models/o"},
        hidden={"google/gemma-2-9b": "model_0"},
    )
    module = interface.module
    assert module.path == module.same == "/models/google--gemma-2-9b"
    assert module.names == ["model_0", "open/one"]
    assert interface.blind
    assert "gemma" not in str(interface.schema()).lower()
    assert interface.functions["f"].doc == "Reads model_0, that is model_0."
    assert interface.functions["f"].parameters[0].default == "..."
    assert not load_text("@expose\ndef f() -> int: ...").blind


@pytest.mark.parametrize(
    "text",
    [
        "@expose\ndef f(x: Literal['gemma-2-9b']) -> int: ...",
        "class E(enum.Enum):\n    A = 'google/gemma-2-9b'\n@expose\ndef f(x: E) -> int: ...",
        "@expose\ndef ask_gemma_2_9b() -> int: ...",
        "@dataclass\nclass D:\n    gemma_2_9b: int\n@expose\ndef f(x: D) -> int: ...",
    ],
)
def test_a_schema_that_would_name_a_hidden_model_is_not_served(load_text: Load, text: str) -> None:
    head = "import enum\nfrom dataclasses import dataclass\nfrom typing import Literal\n"
    with pytest.raises(ServeError, match="the name of a hidden model occurs in") as caught:
        load_text(
            head + text,
            models={"google/gemma-2-9b": "/m/x"},
            hidden={"google/gemma-2-9b": "model_0"},
        )
    assert "model_0" in str(caught.value)


def test_defaults_of_fields_that_name_a_hidden_model_stay_on_the_server(load_text: Load) -> None:
    interface = load_text(
        """
        import enum
        from dataclasses import dataclass
        class E(enum.Enum):
            A = 1
        @dataclass
        class D:
            which: str = "google/gemma-2-9b"
            e: E = E.A
        @expose
        def f(x: D) -> int: ...
        """,
        models={"google/gemma-2-9b": "/m/x"},
        hidden={"google/gemma-2-9b": "model_0"},
    )
    assert [f.default for f in interface.description.types["D"].fields] == ["...", "..."]


def test_decorators_above_expose_are_not_lost(load_text: Load) -> None:
    interface = load_text("""
        import functools
        def doubled(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return 2 * function(*args, **kwargs)
            return wrapper

        @doubled
        @doubled
        @expose
        def f(x: int) -> int:
            return x
    """)
    target = interface.functions["f"].target
    assert target is not None
    assert target(3) == 12


def test_kept_objects_outlive_a_reload(load_text: Load) -> None:
    text = """
        from seer.rpc import keep
        model = keep("model", list)
        model.append({number})
        {extra}
        @expose
        def f() -> list:
            return model
    """
    first = load_text(text.format(number=1, extra="keep('gone', dict)"))
    path = Path(first.file)
    path.write_text(
        path.read_text().replace("append(1)", "append(2)").replace("keep('gone', dict)", "")
    )
    second = first.reload()
    assert second.module.model == [1, 2]
    assert second.module.model is first.module.model
    assert set(first.context.kept) == {"model", "gone"}
    assert set(second.context.kept) == {"model"}
    assert second.source_hash != first.source_hash
    path.write_text("1 / 0")
    with pytest.raises(ServeError):
        second.reload()
    assert set(second.context.kept) == {"model"}


# --- outside of any interface ----------------------------------------------------------------


def test_outside_an_interface_expose_only_marks() -> None:
    @seer.rpc.expose
    def f(x: int) -> int:
        return x

    @seer.rpc.expose(timeout=3)
    def g(x: int) -> int:
        return x

    assert f(3) == g(3) == 3
    assert getattr(g, _expose.MARK).timeout == 3


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    wrong: Any = {"max_call": 3}
    told = r"^expose\(max_call=3\): no such option; did you mean max_calls\? .* timeout, max_calls,"
    with pytest.raises(TypeError, match=told):
        seer.rpc.expose(**wrong)


def test_outside_an_interface_models_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_expose, "_latest", _expose._outside)
    monkeypatch.setenv("MODEL_GOOGLE_GEMMA_2_9B_PATH", "/m/g")
    assert seer.rpc.get_model_path("google/gemma-2-9b") == "/m/g"
    assert seer.rpc.list_configured_models() == []
    with pytest.raises(ModelError, match="no model 'a' is configured; configured: none"):
        seer.rpc.get_model_path("a")


def test_the_public_names_are_all_there_is() -> None:
    for name in seer.rpc.__all__:
        assert name in dir(seer.rpc)
        assert getattr(seer.rpc, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        getattr(seer.rpc, "nope")  # noqa: B009


def test_the_schema_survives_its_way_to_the_controller(load_text: Load) -> None:
    interface = load_text("""
        @expose(cost=2)
        def f(a: int, /, *, b: str = "x") -> dict:
            "Doc."
    """)
    schema = Schema.from_json(interface.schema())
    assert schema.to_json() == interface.schema()
    assert schema.source_hash == interface.source_hash
