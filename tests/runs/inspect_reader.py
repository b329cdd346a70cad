"""Reads a log with the `inspect_ai` package, in an environment of its own, and says what it sees.

Run as a program by `test_inspect`; imported by nothing.
"""

import importlib
import json
import sys
from typing import Any


def main() -> None:
    """Read the log named on the command line; print what it holds as JSON."""
    inspect: Any = importlib.import_module("inspect_ai.log")
    path, folder = sys.argv[1:]
    log = inspect.read_eval_log(path)
    sample = log.samples[0]
    inspect.write_eval_log(log, f"{folder}/copy.eval")
    again = inspect.read_eval_log(f"{folder}/copy.eval").samples[0]
    calls: list[Any] = [c for m in sample.messages if m.role == "assistant" for c in m.tool_calls]
    parts = [part for m in sample.messages if not isinstance(m.content, str) for part in m.content]
    seen = {
        "status": log.status,
        "task": log.eval.task,
        "model": log.eval.model,
        "messages": [[message.role, message.text] for message in sample.messages],
        "tool_calls": [[call.function, call.arguments] for call in calls],
        "parts": sorted(part.type for part in parts),
        "events": [event.event for event in sample.events],
        "output": sample.output.completion,
        "tokens": log.stats.model_usage[log.eval.model].total_tokens,
        "limit": sample.limit.type if sample.limit else None,
        "error": sample.error.message if sample.error else None,
        "listed": len(inspect.list_eval_logs(folder)),
        "same": [m.text for m in again.messages] == [m.text for m in sample.messages],
    }
    sys.stdout.write(json.dumps(seen))


main()
