"""What reading and changing activations costs, by library: `python benchmarks/bench_interfaces.py`.

It runs a forward pass and a greedy generation of a Llama with random weights: plain, with
transformers' own hidden states, with a forward hook of torch, and with nnsight. Ratios are within
one run. `docs/decisions/whitebox-library.md` is based on the result. `--device cuda --size 1b`
measures a model of realistic size.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.insert(1, str(ROOT / "src"))

from benchmarks._common import (  # noqa: E402
    RESULTS,
    header,
    machine,
    median,
    table,
    versions,
    write_results,
)

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 400,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    },
}


def build(size: str, device: str) -> Any:
    """A Llama with random weights, created on the device."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        **SIZES[size],
        max_position_embeddings=16384,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    if device == "cpu":
        torch.set_num_threads(1)  # more threads would only wait for each other
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)
    model = model.to(torch.bfloat16 if device == "cuda" else torch.float32)
    return model.eval().requires_grad_(False)


def overheads(model: Any, device: str, rounds: int) -> dict[str, float]:
    """The median of each way in milliseconds. The ways take turns."""
    import torch
    from transformers import GenerationConfig

    from seer.interfaces.toolkit._interventions import Site, generate_changed, read, run_changed
    from seer.interfaces.toolkit._model import Model

    wrapped = Model("m", model, tokenizer())
    row = list(range(2, 66))
    batch = wrapped.pad_rows([row])
    place = Site(wrapped.layers // 2, "residual")
    block = wrapped.site(*place).module
    push = torch.randn(wrapped.width, device=device)
    options = {
        "generation_config": GenerationConfig(
            max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=1
        )
    }
    prompt = {k: v for k, v in batch.items() if k != "position_ids"}

    def hooked(call: Callable[[], object]) -> None:
        handle = block.register_forward_hook(lambda _m, _a, out: out + push.to(out.dtype))
        try:
            call()
        finally:
            handle.remove()

    def change(value: Any, _step: int) -> Any:
        return value + push.to(value.dtype)

    def forward() -> None:
        model(**batch, logits_to_keep=1, use_cache=False)

    def generate() -> None:
        model.generate(**prompt, **options)

    ways: dict[str, Callable[[], object]] = {
        "forward, plain": forward,
        "forward, hidden states of transformers": lambda: wrapped.decoder(
            **batch, output_hidden_states=True, use_cache=False
        ),
        "forward, one site read with nnsight": lambda: read(wrapped, batch, [place]),
        "forward, changed by a hook of torch": lambda: hooked(forward),
        "forward, changed with nnsight": lambda: run_changed(wrapped, batch, {place: change}),
        "16 tokens, plain": generate,
        "16 tokens, changed by a hook of torch": lambda: hooked(generate),
        "16 tokens, changed with nnsight": lambda: generate_changed(
            wrapped, prompt, {place: change}, options
        ),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for turn in range(rounds + 2):
            for name, call in ways.items():
                begin = time.perf_counter()
                call()
                if device == "cuda":
                    torch.cuda.synchronize()
                if turn >= 2:  # the first ones load code
                    taken[name].append((time.perf_counter() - begin) * 1e3)
    return {name: median(values) for name, values in taken.items()}


def tokenizer() -> Any:
    """The tiny models' tokenizer."""
    from transformers import AutoTokenizer

    from seer.testing import make_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        return AutoTokenizer.from_pretrained(make_tiny_model(Path(folder) / "tiny"))


def overhead_table(found: dict[str, float]) -> str:
    """The table's rows: each way, with its ratio to the plain one of its kind."""
    rows: list[list[str]] = []
    for name, value in found.items():
        plain = found[f"{name.partition(',')[0]}, plain"]
        rows.append([name, f"{value:.2f}", f"{value / plain:.2f}"])
    return table(["", "ms", "over plain"], rows)


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="tiny", choices=sorted(SIZES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model = build(arguments.size, arguments.device)
    found = overheads(model, arguments.device, arguments.rounds)
    used = versions(Path(sys.executable), ["nnsight", "torch", "transformers"])
    title = "Reading and changing activations, by library"
    count = sum(p.numel() for p in model.parameters())
    text = "\n".join(
        [
            header(title, used, machine()),
            f"A Llama of {count:,} parameters, random weights, 64 tokens; medians of "
            f"{arguments.rounds} rounds in which the ways take turns.",
            "",
            overhead_table(found),
        ]
    )
    print(text)
    data = {"ms": found, "versions": used, "machine": machine(), "parameters": count}
    write_results("interfaces-library", text, data, folder=arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
