"""One investigation: a study of an organism, and a grade for the agent's answer.

The model is hidden: nothing that the agent can reach shows which organism it is. The controller
reads the truth after the agent has ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seer.environment import ModelConfig
from seer.errors import AnswerError, ConfigError
from seer.harness import Agent, Limits
from seer.organisms import GroundTruth, base_model, organism
from seer.runs import open_run
from seer.scoring._answer import Answer, parse_answer
from seer.scoring._grade import Grade, grade
from seer.scoring._study import study
from seer.workspace import Library


@dataclass(frozen=True)
class Outcome:
    """The result of an investigation. Its text is a few lines for a person."""

    agent: str
    tools: str
    organism: str
    """Its name. For your own model: hub id or folder, with `@revision` unless that is main."""
    run: Path
    """The folder of the record."""
    answer: Answer | None
    """None if the agent's last message has no valid answer."""
    grade: Grade | None
    seed: int = 0
    """The repetition; `tool_gap` compares runs of the same organism and seed."""

    truth: GroundTruth | None = None
    """The truth about your own model; None for an organism."""

    @property
    def control(self) -> bool:
        """Whether nothing was planted in the organism."""
        if self.truth is not None:
            return not self.truth.answer
        return organism(self.organism).is_control

    @property
    def correct(self) -> bool:
        """Whether the agent found the property, or found a control clean."""
        return self.grade is not None and self.grade.correct

    def __str__(self) -> str:
        answer = dict(self.answer.fields) if self.answer is not None else "none"
        reasons = "".join(f"; {reason}" for reason in self.grade.reasons) if self.grade else ""
        return f"answer: {answer}\ncorrect: {self.correct}{reasons}\nrecord: {self.run}"


async def investigate(
    name: str | ModelConfig,
    *,
    interface: Path,
    task: str,
    provider: str | Agent = "claude",
    model: str | None = None,
    libraries: Sequence[Library] = (),
    config: Mapping[str, object] | None = None,
    limits: Limits | None = None,
    workspace_dir: Path | None = None,
    seed: int = 0,
    truth: GroundTruth | None = None,
) -> Outcome:
    """Let an agent study an organism or a model of your own, and grade its answer.

    The run's score becomes 1 for a correct answer, and 0 for a wrong one or none.

    Args:
        name: The organism or control, or your own model with its `truth`.
        interface: The interface file whose functions the agent gets, as the library `tools`.
        task: The task for the agent, including how to answer (see `answer_format`).
        provider: The agent, as for `run_agent`.
        model: The vendor's model.
        libraries: Local code for the agent's workspace.
        config: Fields of `SandboxConfig` that override the defaults of `study`.
        limits: What the run may use.
        workspace_dir: The agent's workspace; by default a folder that is removed afterwards.
        seed: The number of this repetition, for the outcome. Repetitions with the same organism
            and tool set need different numbers.
        truth: What is planted in your own model: the fields of an answer, each with the wordings
            that count as right. Without fields, the model is a control. The truth stays in this
            process.

    Raises:
        ConfigError: `truth` is missing for your own model, or was given for an organism.
        RecordError: The run has no record, so nothing can be graded.
        UnknownOrganismError: There is no such organism.
    """
    subject = _subject(name, truth)
    found = await study(
        subject,
        interface=interface,
        task=task,
        provider=provider,
        model=model,
        libraries=libraries,
        config=config,
        limits=limits,
        workspace_dir=workspace_dir,
        name=f"investigate-{interface.stem}",
    )
    run = open_run(found.run)
    try:
        answer = parse_answer(found.said)
    except AnswerError:
        answer = graded = None
    else:
        calls = list(run.typed_calls())
        graded = grade(answer, truth or str(name), calls)
    outcome = Outcome(
        found.agent, found.tools, _label(name), found.run, answer, graded, seed, truth
    )
    run.set_score(float(outcome.correct))
    return outcome


def _label(name: str | ModelConfig) -> str:
    """The name of the studied model in the outcome."""
    if isinstance(name, str):
        return name
    return name.name if name.revision == "main" else f"{name.name}@{name.revision}"


def _subject(name: str | ModelConfig, truth: GroundTruth | None) -> ModelConfig:
    """The model, hidden from the agent."""
    if isinstance(name, ModelConfig):
        if truth is None:
            raise ConfigError("truth", None, "is needed to grade answers about your own model")
        return name
    if truth is not None:
        raise ConfigError("truth", truth.kind, f"must be left out: {name!r} has its own truth")
    return ModelConfig(
        name=str(organism(name).path), is_peft=True, base_model=str(base_model()), hidden=True
    )
