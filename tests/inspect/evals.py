"""Evaluations of Inspect in Seer's sandboxes, with Inspect's scripted model."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from inspect_ai import Task, eval_async  # pyright: ignore[reportUnknownVariableType]
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, text_editor
from inspect_ai.util import SandboxUserUnsupportedError

import seer.inspect
from seer.environment import SandboxConfig, ScopedSandbox
from seer.inspect import SeerConfig, SeerSandboxEnvironment

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
    # Inspect leaves its own streams open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

INTERFACE = '''
@expose
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b

@expose
def broken() -> str:
    """Fails."""
    raise ValueError("no")
'''


def answers(*outputs: ModelOutput) -> Any:
    for output in outputs:
        # Without one, the scripted model would count tokens with a file from the internet.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return get_model("mockllm/model", custom_outputs=list(outputs))


def call(function: str, **arguments: Any) -> ModelOutput:
    return ModelOutput.for_tool_call("mockllm/model", function, arguments)


async def evaluated(task: Task, model: Any, folder: Path) -> EvalLog:
    (log,) = await eval_async(task, model=model, log_dir=str(folder))
    assert log.status == "success", log.error
    return log


def said_by_tools(log: EvalLog) -> list[str]:
    assert log.samples
    messages = [m for m in log.samples[0].messages if isinstance(m, ChatMessageTool)]
    return [m.error.message if m.error else m.text for m in messages]


@pytest.mark.campaign
async def test_a_task_runs_in_a_sandbox_of_its_own(tmp_path: Path) -> None:
    sample = Sample(input="go", target="done", files={"given.txt": "hello"})
    task = Task(
        dataset=[sample],
        solver=[use_tools(bash(), text_editor()), generate()],
        scorer=includes(),
        sandbox="seer",
    )
    model = answers(
        call("bash", command="cat given.txt; whoami"),
        call("text_editor", command="create", path="/tmp/made.txt", file_text="made"),
        call("bash", command="cat /tmp/made.txt"),
        ModelOutput.from_content("mockllm/model", "done"),
    )
    log = await evaluated(task, model, tmp_path)
    first, _, last = said_by_tools(log)
    assert (first.split(), last) == (["helloagent"], "made")
    assert log.results and log.results.scores[0].metrics["accuracy"].value == 1


async def test_served_functions_are_tools_by_one_call(tmp_path: Path) -> None:
    file = tmp_path / "interface.py"
    file.write_text(INTERFACE)
    with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        given = seer.inspect.tools(scoped.serve(str(file), expose_as="library"))
        task = Task(dataset=[Sample(input="go")], solver=[use_tools(given), generate()])
        model = answers(
            call("add", a=1, b=5),
            call("add", a=1),
            call("add", a="x"),
            call("broken"),
            ModelOutput.from_content("mockllm/model", "done"),
        )
        log = await evaluated(task, model, tmp_path / "logs")
    said = said_by_tools(log)
    assert said[:2] == ["6", "3"]
    assert "x" in said[2]
    assert "ValueError: no" in said[3]


async def test_a_person_can_paste_the_command_that_connects() -> None:
    config = SeerConfig()
    found = await SeerSandboxEnvironment.sample_init("task", config, {})
    try:
        environment = found["default"]
        await environment.write_file("note.txt", "for you")
        command = (await environment.connection()).command
        done = await anyio.run_process(command, input=b"cat note.txt; exit 3\n", check=False)
        assert b"for you" in done.stdout
        assert done.returncode == 3
        assert (await environment.exec(["echo", "on"])).stdout == "on\n"
        with pytest.raises(SandboxUserUnsupportedError):
            await environment.exec(["id"], user="root")
        with pytest.raises(SandboxUserUnsupportedError):
            await environment.connection(user="root")
    finally:
        await SeerSandboxEnvironment.sample_cleanup("task", config, found, False)
