"""Calls with names: each call of a tool comes back with what a claim must cite it as."""

import json

import tools

_counts: dict[str, int] = {}


def call(function: str, *args: object, **kwargs: object) -> tuple:
    """Call a tool; its result, and the name of the call (`function#n`)."""
    _counts[function] = _counts.get(function, 0) + 1
    return getattr(tools, function)(*args, **kwargs), f"{function}#{_counts[function]}"


def ask(user: str, begin: str = "") -> str:
    """A message in the model's chat format, and the first words of its answer."""
    return tools_prompt([{"role": "user", "content": user}]) + begin


_prompts: dict[str, str] = {}


def tools_prompt(messages: list) -> str:
    """The chat format, asked for once: other messages are put in the same place."""
    marker = "MESSAGE-GOES-HERE"
    if not _prompts:
        _prompts["frame"] = call("chat_prompt", [{"role": "user", "content": marker}])[0]
    return _prompts["frame"].replace(marker, messages[0]["content"])


def answer(found: bool, fields: dict, claims: list) -> str:
    """The final answer as JSON."""
    return json.dumps({"found": found, "answer": fields if found else {}, "claims": claims})


def claim(text: str, calls: list, controls: list, tried: int) -> dict:
    """One claim."""
    return {"text": text, "calls": calls, "controls": controls, "tried": tried}
