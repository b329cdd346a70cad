"""Keys that are planted in the environment appear in no trace of a run.

A vendor's agent with its real SDK works in a session with a served interface that prints and
raises its own secret. While it runs, every process's arguments and the environment of every jailed
process are read; afterwards every file, log line, page and export.

It reads Seer's list of secrets and folders, to search all of them.
"""

import logging
import os
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from seer.environment import SandboxConfig, ScopedSandbox
from seer.events import Event
from seer.execution import create_local_session
from seer.harness import AgentRun, run_agent
from seer.runs import Run, RunRecord, export_inspect, new_run_id, open_run
from seer.testing import (
    AnthropicEndpoint,
    Fault,
    GeminiEndpoint,
    OpenAIEndpoint,
    Reply,
    ToolUse,
    VendorEndpoint,
)
from seer.viewer import Viewer, share
from seer.workspace import Workspace
from tests.support.places import state_dir

pytestmark = pytest.mark.full

NAMES = (
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "HF_TOKEN", "MODAL_TOKEN_SECRET"),
    *("RUNPOD_API_KEY", "AWS_SECRET_ACCESS_KEY", "UNRELATED_PASSWORD", "LAB_TOKEN"),
)
INTERFACE = """
import os, sys

print("at start", os.environ["LAB_TOKEN"], flush=True)
print("at start", os.environ["LAB_TOKEN"], file=sys.stderr, flush=True)

@expose
def names() -> list:
    "Variables that look like keys."
    return sorted(n for n in os.environ if "KEY" in n or "TOKEN" in n or "PASSWORD" in n)

@expose
def refuse() -> str:
    "Fail."
    raise PermissionError("not allowed to use " + os.environ["LAB_TOKEN"])
"""
SEARCH = """
import os, pathlib, tools
found = [f"env {k}" for k, v in os.environ.items() if MARK in v]
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    for name in ("environ", "cmdline", "maps"):
        try:
            if MARK.encode() in (entry / name).read_bytes():
                found.append(f"{entry.name} {name}")
        except OSError:
            pass
for root in (os.getcwd(), os.path.expanduser("~"), "/tmp", "/run", "/seer", "/etc", "/dev/shm"):
    for folder, _, files in os.walk(root):
        for name in files:
            try:
                path = os.path.join(folder, name)
                if os.path.getsize(path) < 1 << 20 and MARK.encode() in open(path, "rb").read():
                    found.append(path)
            except OSError:
                pass
print("found", found, "interface has", tools.names())
try:
    tools.refuse()
except PermissionError as error:
    print("refused")
"""


class Planted:
    """Keys, and where they were seen."""

    def __init__(self) -> None:
        self.mark = f"planted{secrets.token_hex(4)}"
        self.values = {n: f"{n[:3].lower()}-{self.mark}-{secrets.token_hex(12)}" for n in NAMES}
        self.seen: list[str] = []

    def named(self, data: bytes) -> list[str]:
        """The keys that occur in the data."""
        return [name for name, value in self.values.items() if value.encode() in data]

    def look_at_processes(self, _request: object) -> Reply:
        """Read arguments and environments of all processes, as root or the user sees them."""
        own = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (entry / "cmdline").read_bytes()
                jailed = os.readlink(entry / "ns" / "pid") != own  # noqa: PTH115
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            self.seen += [f"arguments: {name}" for name in self.named(arguments)]
            if jailed:
                # The agent itself, and process 1 of its jail, which started it.
                kind = "agent" if b"\0/agent/" in b"\0" + arguments else "jailed"
                self.seen += [f"{kind}: {name}" for name in self.named(environment)]
        return Reply(text="I am done")

    def look_at_files(self, *folders: Path) -> list[str]:
        """Files that contain a key, or the part that all keys have in common."""
        return [
            f"{path}: {self.named(path.read_bytes())}"
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file() and self.mark.encode() in path.read_bytes()
        ]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    found = Planted()
    for name, value in found.values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SEER_AGENT_RETRIES", "1")
    return found


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What the program's own exporter gets."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


async def finish(run: AgentRun) -> list[Event]:
    with anyio.fail_after(200):
        return [event async for event in run]


def page(viewer: Viewer, path: str) -> bytes:
    headers = {"Authorization": f"Bearer {viewer.token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{viewer.port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()


def exported(run: Run, folder: Path) -> bytes:
    """All forms in which a record is shown to others: the page, a shared file, a log of Inspect."""
    text = share(run, folder / "shared.html").read_bytes()
    text += export_inspect(run, folder / "log.json")[0].read_bytes()
    with Viewer(run.folder.parent) as viewer:
        probe = RunRecord.create(folder / "probe", new_run_id(), meta={"note": viewer.token})
        assert viewer.token not in (probe.folder / "run.json").read_text()
        probe.close("completed")
        for path in ("", "/stream", "/notebook"):
            text += page(viewer, f"/api/runs/{run.run_id}{path}")
        text += page(viewer, "/api/runs")
    return text


VENDORS: dict[str, tuple[str, type[VendorEndpoint], str | None]] = {
    "claude": ("ANTHROPIC_API_KEY", AnthropicEndpoint, None),
    "openai": ("OPENAI_API_KEY", OpenAIEndpoint, "scripted"),
    "gemini": ("GEMINI_API_KEY", GeminiEndpoint, "gemini-3.8-flash"),
}


@pytest.mark.parametrize(
    "vendor", ["claude", "openai", pytest.param("gemini", marks=pytest.mark.campaign)]
)
async def test_planted_keys_are_in_no_process_record_log_page_or_export(
    vendor: str,
    planted: Planted,
    spans: InMemorySpanExporter,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tools.py").write_text(INTERFACE)
    name, endpoint_of, model = VENDORS[vendor]
    key = planted.values[name]
    code = f"MARK = {planted.mark!r}\n{SEARCH}"
    config = SandboxConfig(gpu=None, provider="local", secrets=["LAB_TOKEN"])
    async with ScopedSandbox(config) as sandbox:
        library = sandbox.serve(tmp_path / "tools.py")
        workspace = Workspace(libraries=[library])
        with create_local_session(workspace, tmp_path / "work", name="lab") as session:
            tool = "mcp__lab__python" if vendor == "claude" else "python"
            script: list[Any] = [
                Fault(kind="status", status=500, message=f"could not use the key {key}"),
                Reply(tools=(ToolUse(name=tool, arguments={"code": code}),)),
                planted.look_at_processes,
            ]
            with endpoint_of(script) as endpoint:
                run = run_agent(
                    "find a key",
                    session=session,
                    provider=vendor,
                    base_url=endpoint.url,
                    model=model,
                )
                events = await finish(run)
                asked = str([request.body for request in endpoint.requests]).encode()
    told = str([event.to_json() for event in events]).encode()
    assert b"found [] interface has ['LAB_TOKEN']" in told, told[-3000:].decode()
    # The vendor's process needs its own key, the interface the secret that it was given.
    allowed = {"agent: ANTHROPIC_API_KEY", "jailed: LAB_TOKEN"}
    assert "jailed: LAB_TOKEN" in planted.seen, "the search itself is blind"
    assert set(planted.seen) <= allowed, planted.seen
    assert planted.mark.encode() not in told.replace(code.encode(), b"").replace(
        repr(code)[1:-1].encode(), b""
    )
    assert planted.named(asked) == []
    assert run.folder is not None
    found = open_run(run.run_id, tmp_path / "runs")
    assert planted.named(exported(found, tmp_path)) == []
    assert planted.named("".join(s.to_json() for s in spans.get_finished_spans()).encode()) == []
    shown = capfd.readouterr()
    assert planted.named((shown.out + shown.err + caplog.text).encode()) == []
    left = planted.look_at_files(tmp_path / "runs", tmp_path / "work", state_dir())
    assert not [line for line in left if not line.endswith(": []")], left
