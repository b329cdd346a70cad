"""Measure how surprised each released organism, its control and the base are by held-out texts.

This uses peft with the released adapters, on the base in float32. `table.py` computes the intervals
of the perplexity ratios from the result. Both models of a ratio see the same texts, so the texts
are pairs.

python scripts/organisms/surprise.py experiments/tool-gap/surprise.json
"""

# ruff: noqa: T201 (a command)

import json
import sys
import time
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from seer.organisms import base_model, instances
from seer.organisms._plan import Coder, shared_tokens


@torch.no_grad()
def surprise(model: Any, texts: list[list[int]]) -> list[float]:
    """The mean negative log-probability of each text's tokens after the first."""
    found: list[float] = []
    for text in texts:
        ids = torch.tensor([text])
        found.append(round(float(model(ids, labels=ids).loss), 6))
    return found


def main() -> None:
    """Measure all models, and write the file."""
    begin = time.monotonic()
    path = base_model()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    coder = Coder(transformers.AutoTokenizer.from_pretrained(path))
    texts: list[list[int]] = shared_tokens(coder, kept=0, seed=0)["texts"]
    found: dict[str, Any] = {"base": surprise(model, texts)}
    for name, made in sorted(instances().items()):
        found[name] = {}
        for which, adapter in (("organism", made.organism), ("control", made.control)):
            adapted = peft.PeftModel.from_pretrained(model, adapter)
            found[name][which] = surprise(adapted, texts)
            model = adapted.unload()
        print(name, flush=True)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found) - 1} pairs, {len(texts)} texts, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
