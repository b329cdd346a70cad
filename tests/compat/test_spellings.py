"""Every spelling of the original that needs no machine."""

# A type checker finds no hints for the old packages: one has the name of the folder `src`.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false, reportMissingTypeStubs=false

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import seer.environment
import seer.execution
from seer.events import RunStarted
from seer.harness import LineTerminal, Scripted, Step
from src.environment import ExecutionMode, ModelConfig, RepoConfig, Sandbox, SandboxConfig
from src.environment.handles import ModelHandle, RepoHandle
from src.execution import CLISession, LocalNotebookSession, SessionBase
from src.execution import create_local_notebook_session as create_local_notebook
from src.harness import Provider, run_agent, run_agent_interactive
from src.rpc_helpers import expose, get_model_path, list_configured_models
from src.workspace import Library, Skill, Workspace

CODE = '"""Twice."""\n\n\ndef twice(x: int) -> int:\n    """Twofold."""\n    return 2 * x\n'


def test_a_configuration_takes_what_the_original_took_and_warns_once() -> None:
    with pytest.warns(UserWarning, match="no meaning in Seer") as caught:
        config = SandboxConfig(
            gpu=None,
            execution_mode=None,
            python_packages=["numpy"],
            notebook_packages=["seaborn"],
            docker_in_docker=True,
            debug=True,
            encrypted_ports=[8888],
            jupyter_port=8888,
            rpc_port=8080,
            debug_port=5678,
            rpc_timeout=30,
            wait_timeout=90,
        )
    assert len(caught) == 1
    assert "debug, debug_port, docker_in_docker, encrypted_ports" in str(caught[0].message)
    assert config.execution_mode is ExecutionMode.CLI
    assert config.python_packages == ("numpy", "seaborn")
    assert (config.start_timeout, config.rpc_timeout) == (90, 30)
    assert isinstance(config, seer.environment.SandboxConfig)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = SandboxConfig(None, ExecutionMode.CLI, [ModelConfig("a/b")], [], ["torch"])
    assert (plain.models[0].name, plain.python_packages) == ("a/b", ("torch",))


def test_models_and_repositories_take_the_originals_arguments() -> None:
    assert ModelConfig(name="a/b", load_as_peft=True, base_model="c/d").is_peft
    assert not ModelConfig("a/b", load_as_peft=False).is_peft
    assert RepoConfig(url="a/b", install=False).install is None
    assert RepoConfig(url="a/b", install=True).install == "pip install -e ."
    with pytest.warns(UserWarning, match="dockerfile"):
        assert RepoConfig("a/b", dockerfile="Dockerfile", install="make").install == "make"


def test_handles_have_the_originals_names() -> None:
    handle = ModelHandle.of(
        seer.environment.ModelHandle(
            name="a/b", path="/models/a--b", var_name="model", env_name="M", base_path="/models/c"
        ),
        ModelConfig("a/b", is_peft=True, base_model="c/d"),
    )
    assert (handle.volume_path, handle.base_model_path) == ("/models/a--b", "/models/c")
    assert (handle.is_peft, handle.base_model) == (True, "c/d")
    repo = RepoHandle(name="r", path="/work/r", url="a/r", ref=None, commit="0" * 40)
    assert repo.local_path == "/work/r"
    with pytest.warns(UserWarning, match="container_name"):
        assert repo.container_name is None
    with pytest.raises(AttributeError):
        _ = repo.no_such_thing  # pyright: ignore[reportAttributeAccessIssue]


def test_libraries_skills_and_workspaces_have_the_originals_names(tmp_path: Path) -> None:
    library = Library("doubling", {"doubling.py": CODE})
    assert library.is_single_file and "Twofold." in library.get_prompt_docs()
    assert library.install_in(tmp_path).read_text() == CODE
    package = Library("pack", {"pack/__init__.py": CODE, "pack/more.py": "A = 1\n"})
    assert not package.is_single_file
    assert (package.install_in(tmp_path) / "more.py").read_text() == "A = 1\n"
    assert isinstance(Library.from_code("other", CODE), Library)

    skill = Skill.from_source(source_code=CODE, name="doubling", instructions="First think.")
    assert skill.content.startswith("First think.") and "Twofold." in skill.content
    assert skill.to_skill_md().startswith("---\nname:")
    assert (skill.install_in(tmp_path) / "SKILL.md").read_text() == skill.to_skill_md()
    assert (tmp_path / "doubling" / "scripts" / "doubling.py").read_text() == CODE
    assert isinstance(Skill.from_function(twice), Skill)

    (tmp_path / "data").mkdir()
    workspace = Workspace(
        libraries=[library], local_dirs=[(str(tmp_path / "data"), "/workspace/data")]
    )
    assert [target for _, target in workspace.local_sources()] == ["data"]
    with pytest.warns(UserWarning, match="hidden_model_loading"):
        Workspace([library], hidden_model_loading=True)


def twice(x: int) -> int:
    """Twofold."""
    return 2 * x


async def test_an_agent_is_run_with_the_originals_arguments() -> None:
    agent = Scripted([Step(text="done")])
    assert isinstance(agent, Provider)
    run = run_agent("look", {}, agent, "m", "", {"max_turns": 5}, False, tools=False)
    events = [event async for event in run]
    assert isinstance(events[0], RunStarted)
    assert (events[0].task, events[0].limits["turns"], run.folder) == ("look", 5, None)
    with pytest.warns(UserWarning, match="temperature"):
        run_agent("look", {}, agent, kwargs={"temperature": 1}, tools=False)


@pytest.mark.parametrize("word", ["exit", "quit"])
async def test_a_chat_ends_by_a_word_without_a_slash(word: str) -> None:
    shown = io.StringIO()
    terminal = LineTerminal(io.StringIO(f"hello\n{word}\nnever read\n"), shown)
    agent = Scripted([Step(text="answer one"), Step(text="answer two")])
    ended = await run_agent_interactive(
        provider=agent, terminal=terminal, enable_logging=False, tools=False
    )
    assert ended is not None and ended.reason == "completed"
    assert "answer one" in shown.getvalue() and "answer two" not in shown.getvalue()


def test_notebooks_have_the_originals_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Made(seer.execution.NotebookSession):
        def __init__(self) -> None:
            """Nothing is opened."""

    def create(*args: object, **options: Any) -> Made:
        asked.append((args, options))
        return Made()

    monkeypatch.setattr("seer.execution.create_notebook_session", create)
    session = create_local_notebook(Workspace(), "book", "notebooks", packages=["einops"])
    assert isinstance(session, LocalNotebookSession)
    [(args, options)] = asked
    assert args[2] == "book" and options["notebook_dir"] == "notebooks"
    wanted = {"pandas", "matplotlib", "seaborn", "datasets", "requests", "pillow"}
    assert set(options["packages"]) == {*wanted, "einops"}

    started: list[seer.environment.Sandbox] = []

    def start(sandbox: seer.environment.Sandbox) -> None:
        started.append(sandbox)

    monkeypatch.setattr("seer.environment.Sandbox.start", start)
    with pytest.warns(UserWarning, match="name has no meaning"):
        Sandbox(SandboxConfig(gpu=None, python_packages=["torch", "pandas"])).start(name="lab")
    Sandbox(SandboxConfig(gpu=None, execution_mode=ExecutionMode.CLI)).start()
    assert started[0].config.python_packages[:2] == ("torch", "pandas")
    assert set(started[0].config.python_packages) == {*wanted, "torch"}
    assert started[1].config.python_packages == ()


def test_helpers_and_names_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test of this process may have loaded an interface with models.
    module: Any = sys.modules[expose.__module__]
    monkeypatch.setattr(module, "_latest", module._outside)
    assert issubclass(CLISession, SessionBase)
    assert list_configured_models() == [] and list_configured_models().items() == []
    assert callable(expose) and callable(get_model_path)
