"""Exposed functions as MCP tools, served from a real scoped sandbox."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import ServeError
from seer.execution import acreate_local_session
from seer.mcp._open import open_interface_server, open_loading_server
from seer.testing import on_loop
from seer.workspace import Library, Workspace

from .raw_client import RawClient, shown_in

pytestmark = pytest.mark.full

INTERFACE = '''
import datetime
import enum
import pathlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict
import numpy as np
from seer.rpc import Handle

calls = 0

@expose
def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first.
    """
    global calls
    calls += 1
    return a + b

@expose
def vector(size: int) -> dict:
    """A vector."""
    return {"vector": np.arange(size, dtype="float32"), "size": size}

@expose
def extremes() -> dict[str, float]:
    """Numbers that JSON has not."""
    return {"none": float("nan"), "most": float("inf"), "least": float("-inf"), "one": 1.0}

@expose
def logits() -> np.ndarray:
    """The same in an array."""
    return np.array([0.5, -np.inf])

@expose
def fail(text: str) -> str:
    """Always fails."""
    raise ValueError("no " + text)

@expose
def steps(count: int) -> Iterator[int]:
    """Items one by one."""
    for number in range(count):
        yield number

class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

class Point(NamedTuple):
    x: float
    y: float = 0.0

class Note(TypedDict):
    text: str

@dataclass
class Change:
    layer: int | None = None
    direction: np.ndarray | None = None
    colour: Colour = Colour.RED
    parts: list["Change"] = field(default_factory=list)

@expose
def record(value: Change) -> Change:
    """A record."""
    assert isinstance(value, Change) and all(isinstance(p, Change) for p in value.parts)
    assert value.direction is None or isinstance(value.direction, np.ndarray)
    return value

@expose
def colour(value: Colour) -> Colour:
    """An enum."""
    assert isinstance(value, Colour)
    return value

@expose
def level(value: Level) -> Level:
    """An enum of numbers."""
    assert isinstance(value, Level)
    return value

@expose
def point(value: Point) -> Point:
    """A named tuple."""
    assert isinstance(value, Point)
    return value

@expose
def note(value: Note) -> Note:
    """A dictionary with known keys."""
    return value

@expose
def numbered(value: dict[int, set[str]]) -> dict[int, set[str]]:
    """Keys that are numbers."""
    assert all(type(key) is int for key in value)
    return value

@expose
def moment(value: datetime.datetime) -> datetime.datetime:
    """A moment."""
    assert isinstance(value, datetime.datetime)
    return value

@expose
def place(value: pathlib.Path) -> str:
    """A path."""
    return value.name

@expose
def turned(value: complex) -> complex:
    """A complex number."""
    return value * 1j

@expose
def size(value: bytes) -> int:
    """Bytes."""
    return len(value)

@expose
def total(value: np.ndarray) -> float:
    """An array."""
    return float(value.sum())

@expose
def hold(count: int) -> Handle:
    """A value that stays."""
    return Handle(np.arange(count))

@expose
def held(value: Handle) -> int:
    """What stayed."""
    return int(value.value.sum())

@expose
def sleep(seconds: float) -> str:
    """Take long."""
    time.sleep(seconds)
    return "rested"
'''


@pytest.fixture
async def scoped() -> AsyncGenerator[ScopedSandbox]:
    sandbox = ScopedSandbox(SandboxConfig(gpu=None, provider="local", python_packages=["numpy"]))
    await sandbox.astart()
    try:
        yield sandbox
    finally:
        await sandbox.aterminate()


@pytest.fixture
def interface(tmp_path: Path) -> Path:
    path = tmp_path / "lab.py"
    path.write_text(INTERFACE)
    return path


@pytest.fixture
async def client(scoped: ScopedSandbox, interface: Path) -> AsyncGenerator[Client]:
    config: Any = await scoped.aserve(interface, "mcp")
    assert list(config) == ["lab"]
    entry = config["lab"]
    server = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])
    async with Client(server) as opened:
        yield opened


async def call(client: Client, name: str, **arguments: Any) -> Any:
    async with asyncio.timeout(60):
        return await client.call_tool(name, arguments)


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


async def test_functions_are_tools_with_real_schemas(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"add", "vector", "fail", "steps", "sleep", "lab_result"} <= set(tools)
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].input_schema["properties"]["a"] == {
        "type": "integer",
        "description": "The first.",
    }
    assert text_of(await call(client, "add", a=40)) == "42"
    assert (await call(client, "add", a=1, b=1)).structured_content == {"result": 2}


async def test_a_caller_sees_the_ids_of_its_calls_on_request(client: Client) -> None:
    late = asyncio.create_task(call(client, "sleep", seconds=0.3))
    await call(client, "add", a=1)
    await late
    await call(client, "fail", text="way")
    listed = (await call(client, "lab_calls", last=3)).structured_content["result"]
    assert {one["function"] for one in listed} == {"sleep", "add", "fail"}
    assert json.loads(listed[-1]["arguments"]) in ([["way"], {}], [[], {"text": "way"}])
    # Ids of one connection count up, in the order in which the calls were made.
    tags, numbers = zip(*(one["call"].split("-") for one in listed), strict=True)
    assert len({*tags}) == 1 and len({*numbers}) == 3
    (last,) = (await call(client, "lab_calls", last=1)).structured_content["result"]
    assert last == listed[-1]


async def test_bad_arguments_and_exceptions_are_answers(client: Client) -> None:
    bad = await call(client, "add", a="x")
    assert bad.is_error
    assert "parameter 'a': expected int" in text_of(bad)
    failed = await call(client, "fail", text="way")
    assert failed.is_error
    assert text_of(failed).startswith("ValueError: no way")


async def test_generators_give_their_items(client: Client) -> None:
    assert (await call(client, "steps", count=3)).structured_content == {"result": [0, 1, 2]}


async def test_arrays_are_saved_in_the_agents_own_session_and_no_other(
    scoped: ScopedSandbox, interface: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    servers: list[Any] = []
    for name in ("lab", "other"):
        config: Any = await scoped.aserve(interface, "mcp", name)
        servers.append(config[name])

    async def vectors(session_id: str) -> list[str]:
        """The folder in which two servers save results for one agent."""
        paths: list[str] = []
        for size, entry in zip((500, 600), servers, strict=True):
            env = {"SEER_SESSION": session_id}
            server = StdioServerParameters(command=entry["command"], args=entry["args"], env=env)
            async with Client(server) as client:
                text = text_of(await call(client, "vector", size=size))
                paths.append(text.split("saved as ")[1].split("]")[0].split("'")[-2:][0])
        return paths

    async with await acreate_local_session(workspace_dir=tmp_path / "another") as another:
        for stranger in ("", "no-such-session"):
            kept = await vectors(stranger)
            assert {np.load(path).shape for path in kept} == {(500,), (600,)}
        assert not (tmp_path / "another" / "results").exists()
        async with await acreate_local_session(workspace_dir=tmp_path / "work") as session:
            first, second = await vectors(session.session_id)
            code = f"import numpy as np; print(np.load({first!r}).shape, np.load({second!r}).shape)"
            assert (await session.aexec(code)).stdout == "(500,) (600,)\n"
        assert another.session_id != session.session_id
        assert not (tmp_path / "another" / "results").exists()


async def test_a_cancelled_call_stops_the_function(client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.call_tool("sleep", {"seconds": 600})
    async with asyncio.timeout(60):
        assert text_of(await client.call_tool("add", {"a": 1})) == "3"
    late = await call(client, "lab_result", result_id="sleep-1")
    assert late.is_error
    assert text_of(late) == "sleep-1 was cancelled"


async def test_a_call_beyond_patience_can_be_fetched_later(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.tools._functions.PATIENCE", 0.3)
    early = await call(client, "sleep", seconds=1.5)
    assert early.structured_content["status"] == "running"
    result_id = early.structured_content["result_id"]
    done = await call(client, "lab_result", result_id=result_id, wait=30)
    assert text_of(done) == "rested"
    assert text_of(await call(client, "lab_result", result_id=result_id)) == "rested"
    assert (await call(client, "lab_result", result_id="sleep-99")).is_error


async def test_a_result_is_given_only_to_the_agent_whose_call_it_is(
    scoped: ScopedSandbox, interface: Path, tmp_path: Path
) -> None:
    config: Any = await scoped.aserve(interface, "mcp")
    entry = config["lab"]

    def client_of(session_id: str) -> Client:
        env = {**entry["env"], "SEER_SESSION": session_id}
        return Client(StdioServerParameters(command=entry["command"], args=entry["args"], env=env))

    async with (
        await acreate_local_session(workspace_dir=tmp_path / "one") as one,
        await acreate_local_session(workspace_dir=tmp_path / "two") as two,
        client_of(one.session_id) as owner,
        client_of(two.session_id) as stranger,
    ):
        assert text_of(await call(owner, "add", a=40)) == "42"
        assert text_of(await call(owner, "lab_result", result_id="add-1")) == "42"
        refused = await call(stranger, "lab_result", result_id="add-1")
        assert refused.is_error
        assert "the latest are: none yet" in text_of(refused)
        assert text_of(await call(stranger, "add", a=1)) == "3"
        assert "the latest are: add-2" in text_of(await call(stranger, "lab_result", result_id="x"))


VALUES: dict[str, tuple[Any, Any]] = {
    "record": (
        {"layer": 2, "direction": [0.5, 1], "colour": "blue", "parts": [{"layer": 1}]},
        {
            "layer": 2,
            "direction": {"dtype": "float64", "shape": [2], "values": [0.5, 1.0]},
            "colour": "blue",
            "parts": [{"layer": 1, "direction": None, "colour": "red", "parts": []}],
        },
    ),
    "colour": ("blue", "blue"),
    "level": (2, 2),
    "point": ([1, 2.5], [1.0, 2.5]),
    "note": ({"text": "ü"}, {"text": "ü"}),
    "numbered": ({"3": ["a"]}, {"3": ["a"]}),
    "moment": ("2026-01-02T03:04:05", "2026-01-02T03:04:05"),
    "place": ("/a/b.txt", "b.txt"),
    "turned": ([1, 2], [-2.0, 1.0]),
    "size": ("AAEC", 3),
    "total": ([[1, 2], [3, 4]], 10.0),
}


async def test_every_value_that_a_library_takes_works_as_a_tool(client: Client) -> None:
    """Records, enums, named tuples and the rest arrive as what the hint says, and come back."""
    from jsonschema import Draft202012Validator

    validator: Any = Draft202012Validator
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    for name, (given, expected) in VALUES.items():
        tool: Any = tools[name]
        validator(tool.input_schema).validate({"value": given})
        result = await call(client, name, value=given)
        assert not result.is_error, text_of(result)
        assert result.structured_content == {"result": expected}, name
        if tool.output_schema is not None:
            validator(tool.output_schema).validate(result.structured_content)
    assert tools["add"].output_schema is not None
    assert tools["record"].output_schema is None, "arrays are shown in another way"
    for name, given in (("colour", "green"), ("record", {"wrong": 1}), ("level", "x")):
        refused = await call(client, name, value=given)
        assert refused.is_error
        assert f"{name}() parameter 'value'" in text_of(refused)


async def test_numbers_that_json_has_not_are_named(client: Client) -> None:
    """Clients that show a model the structured form would otherwise show nothing for them."""
    named = {"none": "NaN", "most": "Infinity", "least": "-Infinity", "one": 1.0}
    result = await call(client, "extremes")
    assert result.structured_content == {"result": named}
    assert json.loads(text_of(result)) == named
    array: Any = (await call(client, "logits")).structured_content
    assert array["result"]["values"] == [0.5, "-Infinity"]


async def test_a_handle_that_a_tool_gave_can_be_given_to_another(client: Client) -> None:
    given: Any = (await call(client, "hold", count=5)).structured_content
    handle = given["result"]
    assert handle["$seer"] == "handle" and handle["shape"] == [5]
    assert text_of(await call(client, "held", value=handle)) == "10"
    only = {"$seer": "handle", "id": handle["id"]}
    assert text_of(await call(client, "held", value=only)) == "10"
    unknown = await call(client, "held", value={"$seer": "handle", "id": "h999"})
    assert unknown.is_error and "handle" in text_of(unknown).lower()


async def test_a_client_is_answered_while_the_interface_loads(
    scoped: ScopedSandbox, interface: Path
) -> None:
    """Codex waits 30 s for `initialize`, `claude -p` 5 s, and a model may take longer."""
    library: Any = await scoped.aserve(interface)
    served = library.gate

    async def check(known: Any) -> None:
        loading: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        server = await open_loading_server("lab", known, loading, list_timeout=0.2)

        def listed(client: RawClient) -> set[str]:
            tools = client.ask("tools/list")["result"]["tools"]
            return {tool["name"] for tool in tools}

        def before(client: RawClient) -> int:
            client.initialize()
            assert listed(client) == (
                set() if known is None else {*known.functions, "lab_result", "lab_calls"}
            )
            return client.request("tools/call", {"name": "add", "arguments": {"a": 40}})

        def after(client: RawClient, early: int) -> None:
            messages = [client.next() for _ in range(1 if known is not None else 2)]
            (answer,) = [one["result"] for one in messages if one.get("id") == early]
            assert shown_in(answer) == "42"
            told = [one["method"] for one in messages if "method" in one]
            assert told == ([] if known is not None else ["notifications/tools/list_changed"])
            assert "add" in listed(client)

        try:
            (entry,) = server.mcp_config.values()
            client = RawClient(entry)
            try:
                early = await asyncio.to_thread(before, client)
                loading.set_result(served)
                await asyncio.to_thread(after, client, early)
            finally:
                await asyncio.to_thread(client.close)
        finally:
            await server.close()

    await on_loop(check(None))
    await on_loop(check(served.schema))


async def test_an_interface_that_cannot_be_loaded_is_an_answer(tmp_path: Path) -> None:
    async def check() -> None:
        loading: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        loading.set_exception(ServeError("lab.py:3: there is no model"))
        server = await open_loading_server("lab", None, loading)
        try:
            (entry,) = server.mcp_config.values()
            relay = StdioServerParameters(command=entry["command"], args=entry["args"])
            async with Client(relay) as client:
                with pytest.raises(MCPError, match="could not be loaded: lab.py:3: there is no"):
                    await client.list_tools()
                failed = await client.call_tool("add", {})
                assert failed.is_error and "there is no model" in text_of(failed)
        finally:
            await server.close()

    await on_loop(check())


async def test_a_server_that_cannot_be_opened_leaves_no_caller_at_the_gate(
    scoped: ScopedSandbox, interface: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Any = await scoped.aserve(interface)
    closed: list[str] = []

    class Socket:
        name = address = ""

        async def aclose(self) -> None:
            closed.append("socket")

    class Interface:
        schema = library.gate.schema

        async def open_caller(self, label: str) -> Any:
            return Socket()

    def full(prefix: str) -> None:
        raise OSError("no room")

    monkeypatch.setattr("seer.mcp._open.PrivateFolder", full)
    with pytest.raises(OSError, match="no room"):
        await on_loop(open_interface_server(Interface()))
    assert closed == ["socket"]


async def test_a_served_library_is_imported_and_connected_alike(
    scoped: ScopedSandbox, interface: Path, tmp_path: Path
) -> None:
    library: Any = await scoped.aserve(interface, name="lab_tools")
    assert isinstance(library, Library)
    live = await asyncio.to_thread(library.connect)
    assert await asyncio.to_thread(live.add, 1) == 3
    vector = await asyncio.to_thread(live.vector, 3)
    np.testing.assert_array_equal(vector["vector"], np.arange(3, dtype="float32"))
    workspace = Workspace(libraries=[library, Library.from_code("helpers", "BASE = 40\n")])
    async with await acreate_local_session(workspace, tmp_path / "work") as session:
        code = (
            "import helpers, lab_tools\n"
            "print(lab_tools.add(helpers.BASE))\n"
            "try:\n    lab_tools.fail('way')\nexcept ValueError as error:\n    print(error)\n"
            "print(lab_tools.vector(4)['vector'].sum())"
        )
        result = await session.aexec(code)
        assert result.stdout == "42\nno way\n6.0\n"
