"""One study: an agent investigates a model with a set of tools.

This module does not judge the answer. `_investigate` grades it if there is a truth, and `_evidence`
checks it against the record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer._transient import TransientFolder
from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.errors import RecordError
from seer.execution import acreate_local_session
from seer.harness import Agent, Limits, Text, run_agent
from seer.runs import open_run
from seer.workspace import Library, Workspace

_DEFAULTS: dict[str, object] = {
    "gpu": None,
    "provider": "local",
    "python_packages": ["torch", "transformers", "peft", "nnsight", "scikit-learn"],
    # The organisms are small, so more threads would wait for each other longer than they compute.
    "env": {"OMP_NUM_THREADS": "1"},
}


@dataclass(frozen=True)
class Study:
    """The result of a study."""

    agent: str
    """The agent that ran."""
    tools: str
    run: Path
    """The folder of the record."""
    said: str
    """The agent's last message."""


async def study(
    subject: ModelConfig,
    *,
    interface: Path,
    task: str,
    provider: str | Agent = "claude",
    model: str | None = None,
    libraries: Sequence[Library] = (),
    config: Mapping[str, object] | None = None,
    limits: Limits | None = None,
    workspace_dir: Path | None = None,
    name: str | None = None,
) -> Study:
    """Let an agent study a model through an interface.

    Args:
        subject: The model; with `hidden=True` the agent does not learn which it is.
        interface: The interface file whose functions the agent gets, as the library `tools`.
        task: The task for the agent, including how to answer (see `answer_format`).
        provider: The agent, as for `run_agent`.
        model: The vendor's model.
        libraries: Local code for the agent's workspace.
        config: Fields of `SandboxConfig` that override the defaults: this machine, no GPU, one
            thread, and the packages that the ready-made interfaces need.
        limits: What the run may use.
        workspace_dir: The agent's workspace; by default a folder that is removed afterwards.
        name: The run's name; by default `study-` and the interface's name.

    Raises:
        RecordError: The run has no record, so nothing can be checked.
    """
    settings: dict[str, object] = {**_DEFAULTS, **(config or {})}
    scoped = ScopedSandbox(SandboxConfig(models=[subject], **settings))  # pyright: ignore[reportArgumentType]
    with TransientFolder("study") as spare:
        try:
            await scoped.astart()
            tools: Any = await scoped.aserve(str(interface), expose_as="library", name="tools")
            async with await acreate_local_session(
                workspace=Workspace(libraries=[tools, *libraries]),
                workspace_dir=str(workspace_dir or spare / "workspace"),
            ) as session:
                said = ""
                run = run_agent(
                    task=task, session=session, provider=provider, model=model, limits=limits,
                    name=name or f"study-{interface.stem}",
                )  # fmt: skip
                async for event in run:
                    if isinstance(event, Text):
                        said = event.text
        finally:
            await scoped.aterminate()
    if run.folder is None:
        raise RecordError("the run has no record, so nothing in it can be checked")
    return Study(open_run(run.folder).info.agent or "", interface.stem, run.folder, said)
