"""Calls with ids, and claims about them in the form that `seer verify` checks."""

import json

import tools


def call(function: str, *args: object, **kwargs: object) -> tuple:
    """Call a tool, and return its result and the id of the call."""
    return getattr(tools, function)(*args, **kwargs), tools.last_call()


def ask(user: str, begin: str = "") -> str:
    """A message in the model's chat format, and the first words of its answer."""
    return tools_prompt([{"role": "user", "content": user}]) + begin


_prompts: dict[str, str] = {}


def tools_prompt(messages: list) -> str:
    """The prompt for messages. The chat format is requested once, and reused for other messages."""
    marker = "MESSAGE-GOES-HERE"
    if not _prompts:
        _prompts["frame"] = call("chat_prompt", [{"role": "user", "content": marker}])[0]
    return _prompts["frame"].replace(marker, messages[0]["content"])


def answer(found: bool, fields: dict, claims: list) -> str:
    """The final answer as JSON."""
    return json.dumps({"found": found, "answer": fields if found else {}, "claims": claims})


def at(names: list, *path: object) -> list:
    """The same place in the results of several calls."""
    return [{"call": name, "path": list(path)} for name in names]


def effect(text: str, of: list, control: list, given: list, tried: int, **check: object) -> dict:
    """A claim of an effect that the control does not show.

    Args:
        text: The claim in words.
        of: The places that show the effect, as `at` returns them.
        control: The places that do not.
        given: Words of the prompts that `of` was read from.
        tried: How many attempts there were in total.
        check: `measure`, `operator`, `value` and `where`.
    """
    one = {"of": of, "control": control, "given": given, **check}
    return {"text": text, "kind": "effect", "checks": [one], "tried": tried}


def nothing(text: str, of: list, operator: str, value: object, tried: int) -> dict:
    """A claim that something is rare: it holds for at most half of the readings."""
    where = {"operator": operator, "value": value}
    one = {"measure": "rate", "of": of, "where": where, "operator": "<=", "value": 0.5}
    return {"text": text, "kind": "null", "checks": [one], "tried": tried}
