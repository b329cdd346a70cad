"""Every server follows the protocol, tested with a client that knows only the protocol."""

import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import (
    Session,
    create_cli_session,
    create_local_session,
    create_notebook_session,
)

from .raw_client import ENDED, RawClient, shown_in

pytestmark = pytest.mark.full

INTERFACE = '''
import time
from collections.abc import Iterator

@expose
def echo(text: str) -> str:
    """Give the text back."""
    return text

@expose
def half() -> str:
    """Give half a character."""
    return chr(0xD800)

@expose
def rest(seconds: float) -> Iterator[int]:
    """Take long, and say so."""
    for number in range(int(seconds * 10)):
        time.sleep(0.1)
        yield number
'''


@dataclass(frozen=True)
class Served:
    """A server, and how to make it say something or take long."""

    entry: dict[str, Any]
    tool: str
    argument: str
    say: str
    slow_tool: str
    slow: dict[str, object]

    def saying(self, text: str) -> dict[str, object]:
        """Arguments that make the tool show `text`."""
        return {self.argument: self.say.replace("TEXT", text)}


LOOP = "import time\nfor n in range(8): print(n, flush=True); time.sleep(0.1)"


@pytest.fixture(scope="module", params=["functions", "python", "notebook", "shell"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "functions":
        path = folder / "lab.py"
        path.write_text(INTERFACE)
        with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
            config: Any = scoped.serve(str(path), "mcp")
            yield Served(config["lab"], "echo", "text", "TEXT", "rest", {"seconds": 0.8})
        return
    with _open(request.param, folder) as session:
        (entry,) = session.mcp_config.values()
        yield {
            "python": Served(entry, "python", "code", "print('TEXT')", "python", {"code": LOOP}),
            "notebook": Served(
                entry,
                "add_code_cell",
                "source",
                "print('TEXT')",
                "add_code_cell",
                {"source": LOOP},
            ),
            "shell": Served(
                entry,
                "shell",
                "command",
                "printf '%s\\n' 'TEXT'",
                "shell",
                {"command": "for n in $(seq 8); do echo $n; sleep 0.1; done"},
            ),
        }[request.param]


def _open(kind: str, folder: Path) -> Session:
    if kind == "python":
        return create_local_session(workspace_dir=folder / "work")
    if kind == "shell":
        return create_cli_session(workspace_dir=folder / "work")
    return create_notebook_session(notebook_dir=folder / "out", workspace_dir=folder / "work")


@pytest.fixture
def fresh(served: Served) -> Generator[RawClient]:
    """A client that has not shaken hands."""
    with RawClient(served.entry) as client:
        yield client


@pytest.fixture
def client(fresh: RawClient) -> RawClient:
    fresh.initialize()
    return fresh


def error_of(answer: dict[str, Any]) -> int:
    assert "result" not in answer, answer
    assert isinstance(answer["error"]["message"], str)
    return answer["error"]["code"]


def test_versions_are_negotiated(served: Served) -> None:
    for asked, given in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        ("no version", "2025-11-25"),
    ]:
        with RawClient(served.entry) as client:
            result = client.initialize(asked)
            assert result["protocolVersion"] == given
            assert "tools" in result["capabilities"]
            assert set(result["serverInfo"]) >= {"name", "version"}
            assert client.ask("ping")["result"] == {}


def test_nothing_but_a_ping_works_before_the_handshake(fresh: RawClient, served: Served) -> None:
    assert fresh.ask("ping")["result"] == {}
    error_of(fresh.ask("tools/list"))
    error_of(fresh.ask("tools/call", {"name": served.tool, "arguments": served.saying("x")}))
    assert error_of(fresh.ask("initialize", {})) == -32602
    fresh.initialize()
    assert shown_in(fresh.call(served.tool, served.saying("late"))).strip() == "late"


def test_tools_are_listed_with_valid_schemas(client: RawClient) -> None:
    tools = client.ask("tools/list")["result"]["tools"]
    names = [tool["name"] for tool in tools]
    assert len(set(names)) == len(names) > 1
    for tool in tools:
        assert tool["name"].isidentifier()
        assert tool["description"]
        assert tool["inputSchema"]["type"] == "object"
        Draft202012Validator.check_schema(tool["inputSchema"])
    assert error_of(client.ask("tools/list", {"cursor": "elsewhere"})) == -32602


def test_results_have_the_protocols_form(client: RawClient, served: Served) -> None:
    result = client.call(served.tool, served.saying("hello"))
    assert set(result) <= {"content", "structuredContent", "isError", "_meta"}
    assert result["isError"] is False
    assert [set(block) for block in result["content"]] == [{"type", "text"}]
    assert shown_in(result).strip() == "hello"


def test_unknown_methods_and_tools_are_errors_and_unknown_notices_are_nothing(
    client: RawClient,
) -> None:
    assert error_of(client.ask("no/such/method")) == -32601
    assert error_of(client.ask("resources/list")) == -32601
    answer = client.ask("tools/call", {"name": "no such tool"})
    assert error_of(answer) == -32602
    assert "no such tool" in answer["error"]["message"]
    client.notify("notifications/nothing")
    client.notify("notifications/cancelled", {"requestId": 12345})
    client.notify("notifications/progress", {"progressToken": 7, "progress": 1})
    client.send({"jsonrpc": "2.0", "id": 999, "result": {}})
    assert client.ask("ping")["result"] == {}


def test_bad_parameters_are_errors(client: RawClient, served: Served) -> None:
    for params in (None, {}, {"name": 3}, {"name": served.tool, "arguments": [1]}):
        assert error_of(client.ask("tools/call", params)) == -32602
    for arguments in ({}, {served.argument: 5}, {served.argument: "1", "another": 2}):
        result = client.call(served.tool, arguments)
        assert result["isError"] is True
        assert shown_in(result)


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"nonsense", -32700, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": ', -32700, None),
        (b"\xff\xfe\x00", -32700, None),
        (b"[" * 50_000, -32700, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc": "2.0", "id": 7, "method": "ping"}]', -32600, None),
        (b"{}", -32600, None),
        (b'"ping"', -32600, None),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600, 7),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": [7], "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', -32600, 7),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": [1]}', -32602, 7),
        (
            b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"a": "\\ud800"}}',
            -32700,
            None,
        ),
        (b'{"jsonrpc": "2.0", "id": 7, "result": 5}', -32600, 7),
    ],
)
def test_a_line_that_is_no_message_gets_an_error_and_harms_nothing(
    client: RawClient, line: bytes, code: int, request_id: object
) -> None:
    client.write(line + b"\n")
    answer = client.next()
    assert error_of(answer) == code
    assert answer["id"] == request_id
    assert client.ask("ping")["result"] == {}


def test_bytes_may_come_in_any_pieces(client: RawClient) -> None:
    ping = json.dumps({"jsonrpc": "2.0", "id": "p", "method": "ping"}).encode()
    for byte in ping:
        client.write(bytes([byte]))
    client.write(b"\r\n\n  \n")
    assert client.next()["id"] == "p"
    many = [{"jsonrpc": "2.0", "id": f"m{n}", "method": "ping"} for n in range(50)]
    client.write(b"".join(json.dumps(message).encode() + b"\n" for message in many))
    assert {client.next()["id"] for _ in many} == {message["id"] for message in many}


def test_a_line_without_bounds_is_refused_and_the_next_one_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.mcp._lines.LINE_LIMIT", 1 << 20)
    with RawClient(served.entry) as client:
        client.initialize()
        long = client.call(served.tool, served.saying("y" * 15_000))
        assert "y" * 15_000 in shown_in(long)
        arguments = served.saying("x" * (5 << 20))
        client.request("tools/call", {"name": served.tool, "arguments": arguments})
        answer = client.next()
        assert error_of(answer) == -32600
        assert answer["id"] is None
        assert client.ask("ping")["result"] == {}


def test_text_of_all_languages_arrives(client: RawClient, served: Served) -> None:
    text = "Grüße 日本語 𝔘𝔫𝔦 🧪 \u200f \x7f"
    assert shown_in(client.call(served.tool, served.saying(text))).strip("\n") == text
    # Written out instead of escaped, and vice versa.
    params = {"name": served.tool, "arguments": served.saying(text)}
    message = {"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params}
    client.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
    assert shown_in(client.next()["result"]).strip("\n") == text


def test_half_a_character_in_a_result_is_marked(client: RawClient, served: Served) -> None:
    if served.tool == "echo":
        answer = client.ask("tools/call", {"name": "half", "arguments": {}})
        assert ("error" in answer) != ("result" in answer)
        assert client.ask("ping")["result"] == {}
        return
    half = r"$'\xed\xa0\x80'" if served.tool == "shell" else r"'\ud800'"
    code = served.say.replace("'TEXT'", half)
    shown = shown_in(client.call(served.tool, {served.argument: code}))
    assert set(shown.strip()) <= {"?", "\N{REPLACEMENT CHARACTER}"}
    assert client.ask("ping")["result"] == {}


def test_many_requests_at_once_are_each_answered(client: RawClient, served: Served) -> None:
    wanted: dict[int, str] = {}
    for number in range(20):
        params = {"name": served.tool, "arguments": served.saying(f"n{number}")}
        wanted[client.request("tools/call", params)] = f"n{number}"
    got = {answer["id"]: shown_in(answer["result"]).strip() for answer in map_next(client, 20)}
    assert got == wanted


def test_other_requests_are_answered_while_a_call_runs(client: RawClient, served: Served) -> None:
    slow = client.request("tools/call", {"name": served.slow_tool, "arguments": served.slow})
    assert client.ask("ping")["result"] == {}
    assert client.ask("tools/list")["result"]["tools"]
    assert client.next()["id"] == slow


def test_a_cancelled_call_is_never_answered(client: RawClient, served: Served) -> None:
    slow = client.request("tools/call", {"name": served.slow_tool, "arguments": served.slow})
    assert client.ask("ping")["result"] == {}
    client.notify("notifications/cancelled", {"requestId": slow, "reason": "enough"})
    assert shown_in(client.call(served.tool, served.saying("next"))).strip() == "next"
    assert client.ask("ping")["result"] == {}


def test_progress_grows_and_ends_with_the_result(
    client: RawClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.tools._functions._KEEP_ALIVE", 0.2)
    monkeypatch.setattr("seer.tools._session._PAUSE", 0.1)
    params = {
        "name": served.slow_tool,
        "arguments": served.slow,
        "_meta": {"progressToken": "mine"},
    }
    number = client.request("tools/call", params)
    told: list[float] = []
    while "method" in (message := client.next()):
        assert message["method"] == "notifications/progress"
        assert message["params"]["progressToken"] == "mine"
        told.append(message["params"]["progress"])
    assert message["id"] == number
    assert len(told) >= 2
    assert told == sorted(set(told))
    assert client.ask("ping")["result"] == {}


def test_closing_its_input_ends_a_server(served: Served) -> None:
    client = RawClient(served.entry)
    client.initialize()
    slow = client.request("tools/call", {"name": served.slow_tool, "arguments": served.slow})
    assert client.ask("ping")["result"] == {}
    assert client.close() == 0
    while (message := client.next()) != ENDED:
        assert message["id"] == slow


def map_next(client: RawClient, count: int) -> list[dict[str, Any]]:
    """The next `count` messages, in the order in which they arrive."""
    return [client.next() for _ in range(count)]
