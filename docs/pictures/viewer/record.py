"""Records the run that the documentation's picture shows: a real model, a scripted agent.

SEER_MODEL_ALIASES="google/gemma-2-9b=FOLDER" python docs/pictures/viewer/record.py RUNS
"""

import asyncio
import sys
from pathlib import Path

from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.execution import create_notebook_session
from seer.harness import Call, Limits, Price, Scripted, Step, run_agent
from seer.workspace import Workspace

PROMPT = "The Eiffel Tower stands in the city of"
TASK = f"""
Which tokens and layers make the model continue **"{PROMPT}"** with *Paris*?
Then find a direction for *mood* and show what it does to what the model writes.
"""


def cell(code: str, text: str, thinking: str | None = None, tokens: int = 2000) -> Step:
    """A turn that runs one cell, however long that takes here."""
    return Step(
        text=text,
        thinking=thinking,
        calls=(Call(tool="add_code_cell", arguments={"source": code, "wait": 300}),),
        usage={"input_tokens": tokens, "output_tokens": 90 + len(code) // 3},
    )


STEPS = [
    cell(
        f'import model_tools as mt\n\nprompt = "{PROMPT}"\nprint(mt.model_info())\n'
        "for token, chance in mt.next_tokens(prompt):\n    print(f'{token!r:12} {chance:.3f}')",
        "I look at the model's **shape** and at what it would say next.",
        "Before attributing anything I should check that the model knows the answer at all.",
    ),
    cell(
        'found = mt.attribute(prompt, " Paris")\nlens = mt.logit_lens(prompt, " Paris")\n'
        "print(lens['logit'].shape)",
        "It knows. Two questions now:\n\n1. Which **tokens** speak for ` Paris`? "
        "(blot out one at a time)\n2. In which **layers** does it appear? (logit lens)",
        tokens=3400,
    ),
    cell(
        "import matplotlib.pyplot as plt\n\nplt.figure(figsize=(6, 2.4))\n"
        "plt.plot(lens['logit'][:, -1])\nplt.xlabel('layer'); plt.ylabel('logit of Paris')\n"
        "plt.tight_layout(); plt.show()",
        "At the last position the answer builds up over the layers:",
        tokens=5200,
    ),
    cell(
        'good = ["What a wonderful, joyful day!", "I love this, it is delightful."]\n'
        'bad = ["What a terrible, gloomy day.", "I hate this, it is dreadful."]\n'
        "mood = mt.direction(good, bad, layer=12)\nprint(mood.shape)",
        "Next the **mood** direction, from two contrasting pairs at layer 12.",
        "A difference of means is the simplest thing that could work; layer 12 is in the middle.",
        tokens=6900,
    ),
    cell(
        'out = mt.steer("My weekend was", mood, layer=12, strength=-1.0)\nprint(out["after"])',
        "And what it does to the text:",
        tokens=8100,
    ),
    Step(
        text="## What I found\n\n- The model knows the answer, and **Eiffel** carries it.\n"
        "- ` Paris` becomes readable in the *upper third* of the layers, at the end first.\n"
        "- Less `mood` at layer 12 turns an exciting weekend into one of work.",
        usage={"input_tokens": 9300, "output_tokens": 160},
    ),
]


async def main(runs: str) -> None:
    """Serve the interface, let the script work in a notebook, record it."""
    config = SandboxConfig(
        gpu=None,
        provider="local",
        models=[ModelConfig(name="google/gemma-2-9b")],
        python_packages=["torch", "transformers"],
    )
    with ScopedSandbox(config) as sandbox:
        tools = sandbox.serve(str(Path(__file__).with_name("interface.py")), name="model_tools")
        session = create_notebook_session(
            workspace=Workspace(libraries=[tools]), name="paris-and-mood"
        )
        try:
            run = run_agent(
                task=TASK,
                session=session,
                provider=Scripted(STEPS),
                limits=Limits(turns=20, tool_calls=40, seconds=900, tokens=60_000, cost_usd=0.25),
                price=Price(input=3.0, output=15.0),
                name="Paris, and the mood of a weekend",
                record=runs,
            )
            async for event in run:
                print(event.type, getattr(event, "text", "")[:200])  # noqa: T201
        finally:
            session.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
