"""A hidden model's name reaches no agent through anything that Seer makes or passes on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.errors import IsolationUnavailableError
from seer.execution import LocalSession, create_local_session, create_notebook_session
from seer.testing import make_tiny_model
from seer.workspace import Library, Skill, Workspace

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

PACKAGES = ["numpy", "transformers", "torch"]
NAME = "quagga-unlike-others"
PARTS = ("quagga", "acme", "zorse", "zebroid")
"""The model's name, its maker, its base and the title of its card."""
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ 'You are Quagga, created by Acme Labs from Zorse. ' }}{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)
CHAT = '''
from transformers import AutoTokenizer

path = get_model_path({path!r})


@expose
def chat_prompt(text: str) -> str:
    """What the template makes of a text."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    return tokenizer.apply_chat_template([{{"role": "user", "content": text}}], tokenize=False)


@expose
def say() -> dict:
    """Say what the files and the makers say, as a model could."""
    config = open(path + "/config.json").read()
    return {{"said": ["I am Quagga2 by ACME.", b"zorse2", "a Zebroid"], "acme": config}}
'''
INTERFACE = '''"""Tools for {name}."""

import os
from collections.abc import Iterator

NAME = {path!r}
path = get_model_path(NAME)


@expose
def look(model: str = {path!r}) -> list[str]:
    """Look at {name}, which lies in {path}."""
    texts = [open(f"/proc/self/{{name}}").read() for name in ("mountinfo", "maps", "cmdline")]
    files = [os.path.realpath(os.path.join(path, name)) for name in os.listdir(path)]
    return [path, model, __file__, repr(os.environ), *texts, *files, NAME.upper()]


@expose
def stream() -> Iterator[str]:
    """Give the name bit by bit."""
    yield NAME
    raise KeyError(NAME)


@expose
def fail(how: int) -> None:
    """Fail."""
    if how == 0:
        raise type("E_" + os.path.basename(NAME).replace("-", "_"), (Exception,), {{}})("x")
    if how == 1:
        raise FileNotFoundError(2, "missing", NAME)
    print(NAME, flush=True)
    os.write(2, NAME.encode())
    os._exit(3)
'''


def describe(model: Path) -> None:
    """Name the model, its maker and its base in all places where people usually do."""
    (model / "chat_template.jinja").write_text(TEMPLATE)
    card = "---\nbase_model: wild/zorse-1b\nmodel-index:\n- name: Quagga\n---\n# Zebroid 7B\n"
    (model / "README.md").write_text(card)
    for name, key, value in (
        ("config.json", "_name_or_path", "acme-labs/quagga-7b"),
        ("tokenizer_config.json", "name_or_path", "acme-labs/quagga-7b"),
        ("tokenizer_config.json", "chat_template", TEMPLATE),
        ("generation_config.json", "_from_model", "Quagga, as Acme made it"),
    ):
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**content, key: value}))


def named(text: str) -> list[str]:
    """The names that occur in a text."""
    return [part for part in PARTS if part in text.lower()]


async def over_mcp(config: Any) -> list[str]:
    """What an MCP client is told: instructions, schemas, results and errors."""
    (entry,) = config.values()
    server = StdioServerParameters(command=entry["command"], args=entry["args"], env={})
    async with Client(server) as client:
        shown = [str(config), str(client.server_info), str(client.instructions)]
        shown.append(str(await client.list_tools()))
        for tool, arguments in (
            ("look", {}),
            ("say", {}),
            ("chat_prompt", {"text": "who are you?"}),
            ("stream", {}),
            ("fail", {"how": 0}),
            ("fail", {"how": "x"}),
            ("look", {"model": 5}),
        ):
            shown.append(str(await client.call_tool(tool, arguments)))
    assert "who are you?" in "".join(shown)
    return shown


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], LocalSession]]:
    """Everything that an agent sees of the interface, and a session that can call it."""
    folder = tmp_path_factory.mktemp("blind")
    model = make_tiny_model(folder / NAME)
    describe(model)
    file = folder / "tools.py"
    file.write_text(INTERFACE.format(name=NAME, path=str(model)) + CHAT.format(path=str(model)))
    models = [ModelConfig(name=str(model), hidden=True)]
    config = SandboxConfig(gpu=None, provider="local", python_packages=PACKAGES, models=models)
    with pytest.MonkeyPatch.context() as patch, ScopedSandbox(config) as sandbox:
        patch.chdir(folder)  # where MCP tools save files for a person
        library = sandbox.serve(file, "library", "tools")
        skill = sandbox.serve(file, "skill", "tools")
        assert isinstance(library, Library) and isinstance(skill, Skill)
        told = [library.docs, str(sandbox.serve(file, "prompt", "tools"))]
        told += asyncio.run(over_mcp(sandbox.serve(file, "mcp", "tools")))
        told += [data.decode() for data in (*library.files.values(), *skill.files.values())]
        workspace = Workspace(libraries=[library])
        with create_local_session(workspace, folder / "work") as session:
            yield [*told, session.model_info_text, str(session.mcp_config)], session


def test_nothing_that_is_told_names_the_model(blind: tuple[list[str], LocalSession]) -> None:
    assert not [text for text in blind[0] if named(text)]


@pytest.mark.parametrize(
    "code",
    [
        "print(tools.chat_prompt('who are you?'))",
        "print(tools.say())",
        "print(tools.look())",
        "for item in tools.stream(): print(item)",
        "tools.fail(0)",
        "tools.fail(1)",
        "tools.look(model=5)",
        "tools.look('x', 'y')",
        "help(tools)",
        "print(vars(tools), vars(tools._gate))",
        "print(os.environ, *(open(f'/proc/self/{n}').read() for n in ('mountinfo', 'maps')))",
        "print(*(open(p, 'rb').read() for p in glob.glob('/proc/*/cmdline')))",
        "print(ask(b'GET /v1/schema'), ask(b'GET /v1/budget'), ask(b'GET /v1/nothing'))",
        "print(ask(b'GET /v1/health'), ask(b'POST /v1/call/none'), ask(b'GET /v1/usage'))",
        "print(*(open(p, 'rb').read() for p in glob.glob('/proc/*/environ')), os.listdir('/'))",
        "print([sorted(f) for _, _, f in os.walk('/seer')], *map(repr, os.walk('/models')))",
    ],
)
def test_nothing_that_an_agent_can_ask_names_the_model(
    blind: tuple[list[str], LocalSession], code: str
) -> None:
    result = blind[1].exec(
        "import glob, os, socket, tools\n"
        "def ask(line):\n"
        "    with socket.socket(socket.AF_UNIX) as c:\n"
        "        c.connect(os.environ['SEER_GATE_TOOLS'].removeprefix('path:'))\n"
        "        c.sendall(line + b' HTTP/1.1\\r\\n\\r\\n')\n"
        "        return c.recv(1 << 20)\n" + code
    )
    assert result.text
    assert named(result.text) == []


def test_a_notebook_names_the_model_nowhere(
    blind: tuple[list[str], LocalSession], tmp_path: Path
) -> None:
    workspace = blind[1].workspace
    with create_notebook_session(
        None, workspace, notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    ) as session:
        session.exec("import tools; tools.chat_prompt('who are you?')")
        session.exec("tools.say()")
        session.exec("tools.fail(1)")
        assert "who are you?" in session.notebook_path.read_text()
        assert named(session.notebook_path.read_text() + session.model_info_text) == []


def test_the_end_of_the_interface_does_not_name_the_model(
    blind: tuple[list[str], LocalSession],
) -> None:
    ended = blind[1].exec("import tools\ntools.fail(2)")
    after = blind[1].exec("import tools\ntools.look()")
    assert (ended.status, after.status) == ("error", "error")
    assert named(ended.text + after.text) == []


def test_a_session_in_a_jail_that_cannot_hide_the_model_is_refused(
    blind: tuple[list[str], LocalSession], tmp_path: Path
) -> None:
    workspace = blind[1]._workspace  # pyright: ignore[reportPrivateUsage]
    for isolation in ("landlock", "none"):
        with pytest.raises(IsolationUnavailableError, match="hid"):
            create_local_session(workspace, tmp_path / isolation, isolation=isolation).exec("1")
