"""The official conformance suite for MCP servers, against functions that a user could write.

The suite speaks HTTP without a token. So its requests pass a bridge that adds the token; over stdio
they pass a bridge that starts a server for each session and says each message to it.
"""

import asyncio
import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.mcp import open_http_server

from . import outside
from .bridges import over_stdio, with_token

pytestmark = [pytest.mark.full, pytest.mark.campaign, pytest.mark.timeout(900)]

INTERFACE = '''
import time
from collections.abc import Iterator
from PIL import Image

@expose
def test_simple_text() -> str:
    """Give a text."""
    return "This is a simple text response for testing."

@expose
def test_image_content() -> Image.Image:
    """Give a picture."""
    return Image.new("RGB", (1, 1), "red")

@expose
def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")

@expose
def test_tool_with_progress() -> Iterator[int]:
    """Take some seconds."""
    for number in range(45):
        time.sleep(0.1)
        yield number
'''

TOOLS = [
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-error",
    "tools-call-with-progress",
]
HTTP_ONLY = ["server-sse-multiple-streams", "dns-rebinding-protection"]
NOT_OFFERED = {
    "completion-complete": "no prompts or resources to complete",
    "elicitation-sep1034-defaults": "tools ask the person nothing",
    "elicitation-sep1330-enums": "tools ask the person nothing",
    "json-schema-2020-12": "schemas come from hints and name no dialect; 2020-12 is the default",
    "logging-set-level": "no log messages; what code prints is in its result",
    "prompts-get-embedded-resource": "no prompts",
    "prompts-get-simple": "no prompts",
    "prompts-get-with-args": "no prompts",
    "prompts-get-with-image": "no prompts",
    "prompts-list": "no prompts",
    "resources-list": "no resources",
    "resources-read-binary": "no resources",
    "resources-read-text": "no resources",
    "resources-subscribe": "no resources",
    "resources-templates-read": "no resources",
    "resources-unsubscribe": "no resources",
    "server-sse-polling": "streams stay open; results of long calls are had by id",
    "tools-call-audio": "no function returns audio",
    "tools-call-elicitation": "tools ask the person nothing",
    "tools-call-embedded-resource": "no resources",
    "tools-call-mixed-content": "no resources",
    "tools-call-sampling": "tools ask the client's model nothing",
    "tools-call-with-logging": "no log messages; what code prints is in its result",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Any]:
    path = tmp_path_factory.mktemp("suite") / "lab.py"
    path.write_text(INTERFACE)
    config = SandboxConfig(gpu=None, provider="local", python_packages=["pillow"])
    with ScopedSandbox(config) as scoped:
        yield scoped.serve(path), scoped.present("lab", "mcp")


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest, served: Any) -> Generator[str]:
    library, config = served
    if request.param == "stdio":
        with over_stdio(config["lab"]) as url:
            yield url
        return

    async def loaded() -> Any:
        return library.gate

    async def open_server() -> Any:
        return await open_http_server("lab", None, loaded(), port=0, token="of the suite")

    server = asyncio.run(open_server())
    try:
        with with_token(server.url, "of the suite") as url:
            yield url
    finally:
        asyncio.run(server.close())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*outside.node("conformance"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(
    ("address", "scenario"),
    [
        *(("http", name) for name in [*TOOLS, *HTTP_ONLY]),
        *(("stdio", name) for name in TOOLS),
    ],
    indirect=["address"],
)
def test_a_scenario_passes(address: str, scenario: str, tmp_path: Path) -> None:
    done = run("server", "--url", address, "--scenario", scenario, "-o", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    files = list(tmp_path.rglob("checks.json"))
    checks = [check for file in files for check in json.loads(file.read_text())]
    assert checks
    assert {check["status"] for check in checks} <= {"SUCCESS", "INFO"}, done.stdout


def test_every_scenario_is_run_or_has_a_reason() -> None:
    listed = run("list", "--server").stdout
    found = {line.split()[1] for line in listed.splitlines() if line.startswith("  - ")}
    assert found == {*TOOLS, *HTTP_ONLY, *NOT_OFFERED}
