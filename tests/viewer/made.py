"""Records of runs, made without an agent: realistic, large and hostile ones."""

import base64
import io
import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from seer.events import (
    AnswerFinished,
    ApprovalAsked,
    ApprovalGiven,
    ErrorEvent,
    Event,
    ImageBlock,
    LimitReached,
    MessageNotDelivered,
    MessageQueued,
    RunStarted,
    TextBlock,
    Thinking,
    ToolInfo,
    Usage,
    UserMessage,
)
from seer.harness import RunFinished, Text, ToolCall, ToolResult
from seer.runs import GateCall, RunRecord, new_run_id

T0 = 1_790_000_000.0
LIMITS = {"turns": 40, "tool_calls": 60, "seconds": 1800.0, "tokens": 200_000, "cost_usd": 2.0}


class Made:
    """A record that is written event by event, with times of one's choice."""

    def __init__(self, root: Path, *, name: str = "steering audit", **meta: Any) -> None:
        given = {"provider": "claude", "model": "claude-opus-4-5", "task": "Find the direction."}
        self.record = RunRecord.create(
            root,
            new_run_id(),
            meta={"name": name, "limits": LIMITS, "created": T0, **given, **meta},
        )
        self.folder = self.record.folder
        self.run_id = self.record.run_id
        self.time = T0
        self._seq = 0
        self._calls = 0

    def add(self, event: Event, *, after: float = 0.5, turn: int = 1) -> None:
        """One event, some seconds after the last."""
        self.time += after
        data = event.to_json() | {"seq": self._seq, "time": self.time, "turn": turn}
        self._seq += 1
        self.record.event(data)

    def tool(
        self,
        code: str,
        *blocks: str | bytes,
        seconds: float = 1.0,
        turn: int = 1,
        error: bool = False,
    ) -> None:
        """A call of the python tool with its result."""
        name = f"call-{self._seq}"
        self.add(ToolCall(id=name, name="python", server="s", arguments={"code": code}), turn=turn)
        content = tuple(
            TextBlock(text=b) if isinstance(b, str) else ImageBlock(data=b) for b in blocks
        )
        result = ToolResult(
            id=name, name="python", content=content, is_error=error, seconds=seconds
        )
        self.add(result, after=seconds, turn=turn)

    def call(
        self,
        function: str,
        arguments: Mapping[str, Any],
        result: Any,
        *,
        arrays: Sequence[bytes] = (),
        before: float = 0.5,
        queue: float = 0.002,
        run: float = 0.1,
        batch: int = 1,
        outcome: str = "ok",
        tool_call: str | None = None,
    ) -> None:
        """A call of the gate, answered `before` seconds before now.

        Without `tool_call`, the record does not say which tool call made it, as older ones.
        """
        text = json.dumps({"result": result} if outcome == "ok" else {"error": result})
        self._calls += 1
        call = GateCall(
            interface="model_tools",
            caller="steering-1",
            function=function,
            arguments=json.dumps([[], dict(arguments)]),
            outcome=outcome,
            result=text,
            result_buffers=tuple(self.record.blob(data) for data in arrays),
            call=f"c{self._calls}",
            time=self.time - before,
            queue=queue,
            run=run,
            batch=batch,
            bytes_in=len(json.dumps(arguments)) + 40,
            bytes_out=len(text) + sum(map(len, arrays)),
            tool_call=tool_call or "",
        )
        line = call.to_json()
        if tool_call is None:
            del line["tool_call"]
        self.record.call(line)

    def close(self, status: Any = "completed", **totals: Any) -> "Made":
        """End the record."""
        self.record.close(status, {"ended": self.time, **totals})
        return self


def floats(values: Sequence[float]) -> bytes:
    """Numbers as the gate keeps float32 arrays."""
    return struct.pack(f"<{len(values)}f", *values)


def array(index: int, *shape: int) -> dict[str, Any]:
    """The tag of an array on the wire."""
    return {"$seer": "array", "buffer": index, "dtype": "<f4", "shape": list(shape)}


def png(width: int = 64, height: int = 32) -> bytes:
    """A picture."""
    out = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(out, "PNG")
    return out.getvalue()


def study(root: Path, *, seed: int = 0, close: bool = True, name: str = "steering audit") -> Made:
    """A short, realistic study of a model; another seed ends differently."""
    chance = random.Random(seed)
    made = Made(root, name=name)
    tokens = ["The", " capital", " of", " France", " is", " Paris", ",", " and", " it", " rains"]
    made.add(
        RunStarted(
            run_id=made.run_id,
            provider="claude",
            model="claude-opus-4-5",
            system_prompt="# Session\n\nPython runs in a *persistent* kernel.",
            task="Find which **tokens** drive the answer, then steer it.",
            tools=(ToolInfo(name="python", server="s", description="Run Python."),),
            limits=LIMITS,
        ),
        turn=0,
    )
    made.add(Thinking(text="First look at the attributions, then at the layers."))
    made.add(Text(text="I start with the **attributions** of `Paris`:\n\n1. gradients\n2. layers"))
    made.tool("import model_tools\nprint(model_tools.attribute('Paris'))", "0.41 at ' France'")
    scores = [chance.uniform(-1, 1) if seed else math.sin(n) for n in range(len(tokens))]
    made.call("attribute", {"text": "…"}, {"tokens": tokens, "attribution": scores}, batch=4)
    made.add(
        Usage(
            input_tokens=1200,
            output_tokens=220,
            total_tokens=1420,
            cost_usd=0.02,
            total_cost_usd=0.02,
        )
    )
    heat = [math.sin(r / 3) * math.cos(c) for r in range(24) for c in range(len(tokens))]
    made.tool("lens = model_tools.logit_lens()", "shape (24, 10)", png(), turn=2, seconds=2.0)
    made.call(
        "logit_lens",
        {"layers": 24},
        {"tokens": tokens, "logits": array(0, 24, len(tokens))},
        arrays=[floats(heat)],
        run=1.2,
        queue=0.2,
    )
    made.call("hidden_state", {"layer": 5}, array(0, 256), arrays=[floats(heat[:240] + [0.0] * 16)])
    made.tool("model_tools.steer(3.0)", "ValueError: no such layer", turn=3, error=True)
    made.call(
        "steer", {}, {"type": "ValueError", "message": "no such layer"}, outcome="RemoteError"
    )
    made.tool("model_tools.steer(3.0, layer=5)", "done", turn=3)
    ending = ["rainy", "sunny"][seed % 2]
    made.call(
        "steer",
        {"strength": 3.0},
        {"before": "The weather is mild.", "after": f"The weather is {ending}, so very {ending}!"},
    )
    made.add(
        Usage(
            input_tokens=9000,
            output_tokens=800,
            total_tokens=11220,
            cost_usd=0.11,
            total_cost_usd=0.13,
        ),
        turn=3,
    )
    made.add(Text(text=f"The direction in layer 5 makes it **{ending}**."), turn=4)
    if close:
        made.add(
            RunFinished(
                reason="completed",
                result=ending,
                turns=4,
                tool_calls=4,
                seconds=12.0,
                tokens=11220,
                cost_usd=0.13,
            ),
            turn=4,
        )
        made.record.artifact("notebook.ipynb", json.dumps(notebook()))
        made.close(turns=4, tool_calls=4, tokens=11220, cost_usd=0.13, result=ending)
    return made


def notebook(
    text: str = "hello", html: str = "<table><tr><th>a</th><td>1</td></tr></table>"
) -> dict[str, Any]:
    """A notebook with each kind of output."""
    picture = base64.b64encode(png()).decode()
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": [text, "\n\x1b[31mred\x1b[0m"]},
        {"output_type": "display_data", "data": {"image/png": picture, "text/plain": "fig"}},
        {"output_type": "execute_result", "data": {"text/html": [html], "text/plain": text}},
        {
            "output_type": "display_data",
            "data": {"image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'>{text}</svg>"},
        },
        {"output_type": "display_data", "data": {"text/markdown": text}},
        {"output_type": "display_data", "data": {"application/json": {"x": text}}},
        {"output_type": "error", "ename": text, "evalue": text, "traceback": [text]},
    ]
    return {
        "cells": [
            {"cell_type": "markdown", "source": f"# Notes\n{text}", "metadata": {}},
            {
                "cell_type": "code",
                "source": f"print('{text}')",
                "execution_count": 1,
                "metadata": {},
                "outputs": outputs,
            },
            {"cell_type": "raw", "source": text, "metadata": {}},
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def long_run(root: Path, events: int) -> Made:
    """A run of many events."""
    made = Made(root, name="long run")
    for number in range(events // 3):
        turn = number + 1
        made.add(
            Text(
                text=f"Step {number}: *looking* at `layer_{number}`.\n\n" + "word " * (number % 60)
            ),
            turn=turn,
        )
        made.tool(
            f"print({number})\n" * (1 + number % 9),
            f"{number}\n" * (1 + number % 7),
            turn=turn,
            seconds=0.2,
        )
        if number % 3 == 0:
            made.call("probe", {"n": number}, {"score": number})
    return made.close(turns=events // 3)


def hostile(root: Path, payloads: Sequence[str]) -> Made:
    """A run with the payloads in every field that an agent or a model can write."""
    joined = " ".join(payloads)
    named = {"name": joined, "task": joined, "model": joined, "message": joined, "session": joined}
    made = Made(root, **named, interfaces={joined: {"docs": joined}})
    tool = ToolInfo(name=joined, server=joined, description=joined)
    started = RunStarted(
        run_id=made.run_id,
        provider=joined,
        model=joined,
        system_prompt=joined,
        task=joined,
        tools=(tool,),
    )
    made.add(started, turn=0)
    for payload in payloads:
        _attack(made, payload)
    cells = notebook(joined, f"<p>{joined}</p>{joined}<table><tr><td>{joined}")
    made.record.artifact("notebook.ipynb", json.dumps(cells))
    made.add(RunFinished(reason="error", message=joined, result=joined))
    return made.close("error", result=joined)


def _attack(made: Made, payload: str) -> None:
    for event in (
        Text(text=payload),
        Thinking(text=payload),
        UserMessage(text=payload),
        MessageQueued(text=payload),
        MessageNotDelivered(text=payload, reason=payload),
        LimitReached(limit="turns", allowed=1, used=1, message=payload),
        AnswerFinished(reason="other", vendor_reason=payload, model=payload),
        ErrorEvent(kind="internal", message=payload),
        ApprovalAsked(id=payload, name=payload),
        Text(text=f"[x]({payload}) ![x]({payload})\n```{payload}\n{payload}\n```"),
        Text(
            text=f"| {payload} |\n|---|\n| {payload} |\n\n- {payload}\n\n> {payload}\n\n# {payload}"
        ),
        ToolCall(
            id=payload, name=payload, server=payload, arguments={payload: payload, "code": payload}
        ),
        ApprovalGiven(id=payload, name=payload, approved=False, by="person", reason=payload),
    ):
        made.add(event)
    data = payload.encode("utf-8", "surrogatepass")
    blocks = (
        TextBlock(text=payload),
        TextBlock(text=payload * 300),
        ImageBlock(data=data, mime_type="image/svg+xml"),
        ImageBlock(data=data, mime_type="text/html"),
    )
    structured = {payload: [payload], "before": payload, "after": payload + "!"}
    result = ToolResult(
        id=payload, name=payload, content=blocks, is_error=True, structured=structured
    )
    made.add(result)
    answer = {
        "tokens": [payload, payload],
        "value": [1.0, -1.0],
        "before": payload,
        "after": payload + "!",
        "pairs": [[payload, 1.0], [payload, 2.0]],
        payload: payload,
    }
    made.call(payload, {payload: payload}, answer, before=0.1, run=0.2)
    made.call("f", {}, {"type": payload, "message": payload}, outcome=payload)


def many(root: Path, count: int) -> None:
    """Folders of ended runs, as plain as can be."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        folder = root / f"20260101-{number:06d}-00000000"
        folder.mkdir()
        meta = {
            "format": 1,
            "run_id": folder.name,
            "status": ["completed", "error", "limit"][number % 3],
            "created": T0 + number,
            "ended": T0 + number + number % 97,
            "name": f"sweep {number}",
            "provider": ["claude", "openai"][number % 2],
            "model": f"model-{number % 5}",
            "task": f"word{number} of the task",
            "tokens": number,
            "cost_usd": number / 1000,
        }
        (folder / "run.json").write_text(json.dumps(meta))
