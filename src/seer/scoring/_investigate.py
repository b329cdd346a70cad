"""One investigation: an agent, a set of tools, an organism; and whether it found what is planted.

The model is hidden: nothing that the agent can reach tells which organism it is. The truth is
read here, in the controller, after the agent has ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer._transient import TransientFolder
from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.errors import AnswerError
from seer.execution import create_local_session
from seer.harness import Agent, Limits, Text, run_agent
from seer.organisms import base_model, organism
from seer.runs import GateCall, open_run
from seer.scoring._answer import Answer, parse_answer
from seer.scoring._grade import Grade, grade
from seer.workspace import Library, Workspace

_DEFAULTS: dict[str, object] = {
    "gpu": None,
    "provider": "local",
    "python_packages": ["torch", "transformers", "peft", "nnsight", "scikit-learn"],
    # The organisms are small: more threads wait for each other longer than they compute.
    "env": {"OMP_NUM_THREADS": "1"},
}


@dataclass(frozen=True)
class Outcome:
    """What came of an investigation."""

    agent: str
    tools: str
    organism: str
    run: Path
    """The folder of the record."""
    answer: Answer | None
    """None: the agent ended without one."""
    grade: Grade | None

    @property
    def correct(self) -> bool:
        """Whether the property was found, or its absence."""
        return self.grade is not None and self.grade.correct


async def investigate(
    name: str,
    *,
    interface: Path,
    task: str,
    provider: str | Agent = "claude",
    model: str | None = None,
    libraries: Sequence[Library] = (),
    config: Mapping[str, object] | None = None,
    limits: Limits | None = None,
    workspace_dir: Path | None = None,
) -> Outcome:
    """Let an agent study an organism, and grade its answer.

    Args:
        name: The organism or control.
        interface: The interface file whose functions the agent gets, as the library `tools`.
        task: What the agent is told; how to answer belongs in it (`answer_format`).
        provider: Who investigates, as for `run_agent`.
        model: The vendor's model.
        libraries: Local code for the agent's workspace.
        config: Fields of `SandboxConfig` that differ from: this machine, no GPU, one thread, the
            packages of the ready-made interfaces.
        limits: What the run may use.
        workspace_dir: Where the agent works; a folder that is removed afterwards by default.

    Raises:
        UnknownOrganismError: There is no such organism.
    """
    studied = organism(name)
    hidden = ModelConfig(
        name=str(studied.path), is_peft=True, base_model=str(base_model()), hidden=True
    )
    settings: dict[str, object] = {**_DEFAULTS, **(config or {})}
    scoped = ScopedSandbox(SandboxConfig(models=[hidden], **settings))  # pyright: ignore[reportArgumentType]
    with TransientFolder("investigate") as spare:
        try:
            await scoped.astart()
            tools: Any = await scoped.aserve(str(interface), expose_as="library", name="tools")
            session = create_local_session(
                workspace=Workspace(libraries=[tools, *libraries]),
                workspace_dir=str(workspace_dir or spare / "workspace"),
            )
            said = ""
            run = run_agent(
                task=task, session=session, provider=provider, model=model, limits=limits,
                name=f"investigate-{interface.stem}",
            )  # fmt: skip
            async for event in run:
                if isinstance(event, Text):
                    said = event.text
            session.close()
        finally:
            await scoped.aterminate()
    folder = run.folder
    if folder is None:
        raise AnswerError("the run has no record, so nothing can be graded")
    agent = provider if isinstance(provider, str) else provider.name
    try:
        answer = parse_answer(said)
    except AnswerError:
        return Outcome(agent, interface.stem, name, folder, None, None)
    calls = [GateCall.from_json(line) for line in open_run(folder).calls()]
    return Outcome(agent, interface.stem, name, folder, answer, grade(answer, name, calls))
