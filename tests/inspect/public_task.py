"""Runs a public task of `inspect_evals`, unmodified, in Seer's sandboxes; a program of its own.

Nothing imports it: `inspect_evals` is not in Seer's environments.
"""

import importlib
import sys
from typing import Any

from inspect_ai import eval as evaluate  # pyright: ignore[reportUnknownVariableType]
from inspect_ai.model import ModelOutput, ModelUsage, get_model

outputs = [
    ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "echo I am $(whoami)"}),
    ModelOutput.for_tool_call("mockllm/model", "submit", {"answer": "1"}),
]
for output in outputs:
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
module: Any = importlib.import_module("inspect_evals.agent_bench")
(log,) = evaluate(
    module.agent_bench_os(split="dev"),
    model=get_model("mockllm/model", custom_outputs=outputs),
    sandbox="seer",
    limit=1,
    log_dir=sys.argv[1],
    display="plain",
)
assert log.status == "success", log.error
assert log.samples and any("I am agent" in message.text for message in log.samples[0].messages)
sys.stdout.write(f"scored: {log.samples[0].scores}\n")
