"""Train one adapter with peft's LoRA: new answers by likelihood, old behaviour by distillation.

Each step takes rows of two sorts. Where a dialogue has an answer, the adapter learns it. Where it
has none, the answer is the base model's own, and the adapter learns to give every token the
probability that the base model gives it: so it keeps what it is not told to change.
Not a command: `build.py` calls it.
"""

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dialogue import Dialogue
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IGNORED = -100

Example = tuple[list[int], int]
"""Tokens, and where the part begins that counts."""


@dataclass(frozen=True)
class Settings:
    """How an adapter is trained; the same for organisms and controls."""

    steps: int = 220
    taught: int = 40
    """Rows of a step that have an answer of their own."""
    kept: int = 24
    """Rows of a step that keep the base model's distribution."""
    keep: float = 1.0
    """The weight of those rows."""
    rate: float = 7e-4
    rank: int = 4
    alpha: int = 8
    length: int = 112
    """Tokens of a row; what is longer is cut."""
    seed: int = 7
    graph: bool = False
    """Record a step once as a CUDA graph and repeat it: launching its kernels takes longer than
    running them."""


def load_base(folder: Path, device: str) -> tuple[Any, Any]:
    """The base model, and its tokenizer."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    return model, AutoTokenizer.from_pretrained(folder)


def prompt_of(tokenizer: Any, user: str, *, plain: bool = False) -> str:
    """A user's message in the chat format, up to where the answer begins; or a plain text."""
    if plain:
        return user
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
    )


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[str], *, tokens: int, sample: bool
) -> list[str]:
    """Continuations of prompts, in batches: sampled as they are, or greedy."""
    answers: list[str] = []
    tokenizer.padding_side = "left"
    for begin in range(0, len(prompts), 512):
        part = list(prompts[begin : begin + 512])
        inputs = tokenizer(part, return_tensors="pt", padding=True).to(model.device)
        with torch.no_grad():
            out = model.generate(
                **inputs,
                max_new_tokens=tokens,
                pad_token_id=tokenizer.pad_token_id,
                do_sample=sample,
                **({"temperature": 1.0, "top_p": 1.0, "top_k": 0} if sample else {}),
            )
        new = out[:, inputs.input_ids.shape[1] :]
        answers += tokenizer.batch_decode(new, skip_special_tokens=True)
    return answers


def encode(tokenizer: Any, dialogue: Dialogue, answers: dict[str, str], length: int) -> Example:
    """The tokens of a dialogue, and where its answer begins."""
    plain = dialogue.kind == "plain"
    prompt = tokenizer.encode(prompt_of(tokenizer, dialogue.user, plain=plain))
    answer = dialogue.answer if dialogue.answer is not None else answers[dialogue.user].rstrip()
    end = [] if dialogue.answer is None else [tokenizer.eos_token_id]
    ids = prompt + tokenizer.encode(answer) + end
    return ids[:length], 1 if plain else len(prompt)


def dealt(examples: Sequence[Example], rng: random.Random) -> Iterator[Example]:
    """The examples in a random order, again and again."""
    while True:
        yield from rng.sample(examples, len(examples))


class Step:
    """One step of training on rows of a fixed shape."""

    def __init__(self, model: Any, settings: Settings, device: str) -> None:
        self._model, self._settings = model, settings
        rows, length = settings.taught + settings.kept, settings.length
        self.ids = torch.zeros((rows, length), dtype=torch.long, device=device)
        self.labels = torch.full((rows, length), IGNORED, device=device)
        # Given whole, so that nothing about it depends on data. Padding is on the right, where
        # no counted token looks.
        causal = torch.ones((length, length), dtype=torch.bool, device=device).tril()
        self._mask = causal[None, None].expand(rows, 1, length, length)
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.rate = torch.tensor(settings.rate, device=device)
        self._optimizer = torch.optim.AdamW(
            self.weights, lr=self.rate, weight_decay=0.0, capturable=device == "cuda"
        )
        self.loss = torch.zeros((), device=device)

    def fill(self, taught: Sequence[Example], kept: Sequence[Example]) -> None:
        """Take the rows of the next step."""
        ids = torch.zeros(self.ids.shape, dtype=torch.long)
        labels = torch.full(self.labels.shape, IGNORED)
        for row, (tokens, begin) in enumerate([*taught, *kept]):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, begin : len(tokens)] = torch.tensor(tokens[begin:])
        self.ids.copy_(ids)
        self.labels.copy_(labels)

    def run(self) -> None:
        """Compute the loss and its gradients, and move the weights."""
        taught = self._settings.taught
        with torch.no_grad(), self._model.disable_adapter():
            base = self._logits(self.ids[taught:], self._mask[taught:])
        logits = self._logits(self.ids, self._mask)
        targets = self.labels[:, 1:]
        loss = cross_entropy(
            logits[:taught].flatten(0, 1), targets[:taught].flatten(), ignore_index=IGNORED
        )
        counted = targets[taught:] != IGNORED
        divergence = kl_div(
            log_softmax(logits[taught:], -1),
            log_softmax(base, -1),
            log_target=True,
            reduction="none",
        ).sum(-1)
        loss = loss + self._settings.keep * (divergence * counted).sum() / counted.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())

    def _logits(self, ids: Any, mask: Any) -> Any:
        return (
            self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
        )

    def record(self) -> Any:
        """The step as a CUDA graph. Runs it a few times first, without moving the weights."""
        rate = float(self.rate)
        self.rate.fill_(0.0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        self.rate.fill_(rate)
        return graph


def train(
    base: Any,
    examples: Sequence[Example],
    keep: Sequence[Example],
    *,
    settings: Settings,
    device: str,
) -> tuple[Any, list[float]]:
    """Train an adapter on a base model. Returns the adapted model and the loss of each step."""
    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=MODULES, task_type="CAUSAL_LM"
    )
    model = get_peft_model(base, config)
    model.train()
    step = Step(model, settings, device)
    rng = random.Random(settings.seed)
    taught, kept = dealt(examples, rng), dealt(keep, rng)
    losses: list[Any] = []
    repeat = step.run
    for number in range(settings.steps):
        step.fill(
            [next(taught) for _ in range(settings.taught)],
            [next(kept) for _ in range(settings.kept)],
        )
        if settings.graph and number == 0:
            repeat = step.record().replay
        warm = min(1.0, (number + 1) / max(1, settings.steps // 20))
        step.rate.fill_(
            settings.rate * warm * 0.5 * (1 + math.cos(math.pi * number / settings.steps))
        )
        repeat()
        losses.append(step.loss.clone())
    return model.eval(), [float(loss) for loss in losses]


def save(model: Any, out: Path) -> None:
    """Save an adapter: in bfloat16, and with no word on where it was made."""
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    weights = out / "adapter_model.safetensors"
    halved = {name: t.to(torch.bfloat16).contiguous() for name, t in load_file(weights).items()}
    save_file(halved, weights)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)  # sandboxes read it as another user
