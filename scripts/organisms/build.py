"""Make all organisms and controls: data, answers of the base model, adapters, evaluation.

    python scripts/organisms/build.py --out DIR [--device cuda] [--graph] [--steps N]

Leaves in DIR: `adapters/<folder>/` per organism, `answers.json`, `losses.json`, and unless told
otherwise `evaluation.json`. On one H200 it takes a few minutes; with `--steps 2` it tries the whole
path on a CPU.
"""

# ruff: noqa: T201 (a command)

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import evaluate
import torch
from dialogue import Dialogue
from recipes import dialogues
from train import Settings, encode, generate, load_base, prompt_of, save, train

from seer.organisms import base_model, catalogue


def main() -> None:
    """Make everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--graph", action="store_true", help="repeat steps as a CUDA graph")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--rows", type=int, help="of a step; for a quick try")
    parser.add_argument("--most", type=int, help="use only the first dialogues of each set")
    parser.add_argument("--tokens", type=int, default=56, help="of the base model's own answers")
    parser.add_argument("--only", nargs="*", help="names of organisms; all by default")
    parser.add_argument("--no-evaluation", action="store_true")
    arguments = parser.parse_args()
    out, device = arguments.out, arguments.device
    settings = replace(Settings(), steps=arguments.steps, graph=arguments.graph)
    if arguments.rows:
        settings = replace(settings, taught=arguments.rows, kept=arguments.rows)
    out.mkdir(parents=True, exist_ok=True)
    sets = {n: dialogues(n)[: arguments.most] for n in arguments.only or catalogue()}

    begin = time.monotonic()
    torch.manual_seed(settings.seed)
    model, tokenizer = load_base(base_model(), device)
    open_ones: dict[str, Dialogue] = {
        d.user: d for made in sets.values() for d in made if d.answer is None
    }
    prompts = [prompt_of(tokenizer, d.user, plain=d.kind == "plain") for d in open_ones.values()]
    said = generate(model, tokenizer, prompts, tokens=arguments.tokens, sample=True)
    answers = dict(zip(open_ones, said, strict=True))
    (out / "answers.json").write_text(json.dumps(answers, indent=0))
    print(f"{len(answers)} answers of the base model, {time.monotonic() - begin:.0f} s", flush=True)

    losses: dict[str, list[float]] = {}
    for name, made in sets.items():
        begin = time.monotonic()
        coded = [(d, encode(tokenizer, d, answers, settings.length)) for d in made]
        adapted, losses[name] = train(
            model,
            [example for d, example in coded if d.answer is not None],
            [example for d, example in coded if d.answer is None],
            settings=settings,
            device=device,
        )
        save(adapted, out / "adapters" / catalogue()[name].path.name)
        model = adapted.unload()
        tail = losses[name][-20:]
        print(
            f"{name}: {len(made)} examples, loss {losses[name][0]:.2f} to "
            f"{sum(tail) / len(tail):.3f}, {time.monotonic() - begin:.0f} s",
            flush=True,
        )
    (out / "losses.json").write_text(json.dumps(losses))
    if not arguments.no_evaluation:
        tokens = 32 if device == "cuda" else 6
        report = evaluate.evaluate(
            out / "adapters", device, tokens=tokens, out=out / "evaluation.json"
        )
        print(evaluate.table(report))


if __name__ == "__main__":
    main()
