"""`seer judge`: measure how well a judge agrees with answers whose grade is known."""

import dataclasses
import random

import click

from seer.cli._options import json_option
from seer.console import say, say_json
from seer.errors import ConfigError


@click.command(
    name="judge",
    epilog="""\b
Examples:
  seer judge rules                  the rules that grade answers
  seer judge words                  a baseline that looks for words
  seer judge claude --model NAME    a vendor's model, with its key
  seer judge openai --limit 40""",
)
@click.argument("agent")
@click.option("--model", help="The agent's model.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Use only a random sample of this many answers (drawn with seed 0).",
)
@json_option
def command(agent: str, model: str | None, limit: int | None, as_json: bool) -> int:
    """Measure how well a judge agrees with labelled answers.

    Prints the share of agreement and Cohen's kappa, with intervals. AGENT is `rules`, `words`,
    `always`, or any agent that `seer run --agent` accepts.
    """
    from seer._sync import run_sync
    from seer.harness import agent_names
    from seer.scoring import labelled_examples, measure_judge

    examples = labelled_examples()
    if limit is not None and limit < len(examples):
        examples = random.Random(0).sample(examples, limit)
    try:
        found = run_sync(measure_judge(agent, model=model, examples=examples))
    except ConfigError as error:
        if error.field != "provider" or agent.partition(":")[0] in agent_names():
            raise
        known = ", ".join(("rules", "words", "always", *agent_names()))
        raise click.UsageError(f"there is no judge {agent!r}; there are: {known}") from error
    if as_json:
        say_json({"judge": agent, "answers": len(examples), **dataclasses.asdict(found)})
    else:
        say(f"{agent} on {len(examples)} answers: {found}")
    return 0
