"""The documentation's program for vLLM: with vLLM where it is installed, else with a stand-in."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from seer.testing import load_interface, make_tiny_model

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "interfaces.md"


def program() -> str:
    """The program of the page."""
    (text,) = re.findall(
        r"``` \{\.python \.cloud\}\n(from collections.*?)```", PAGE.read_text(), re.S
    )
    return text


@dataclass
class SamplingParams:
    """What the program sets."""

    max_tokens: int
    temperature: float
    seed: int
    logprobs: int


@dataclass
class Logprob:
    """A log-probability as vLLM wraps it."""

    logprob: float


class Output:
    """One result, as far as the program reads it."""

    def __init__(self, prompt: str, settings: SamplingParams) -> None:
        ids = [len(prompt) + settings.seed + n for n in range(settings.max_tokens)]
        self.text = f"{prompt} {settings.seed}"
        self.token_ids = tuple(ids)
        self.logprobs = [{i: Logprob(-i / 10)} for i in ids]
        self.outputs = [self]


class LLM:
    """Stands in for vLLM's class of this name."""

    calls: list[int] = []

    def __init__(self, model: str, gpu_memory_utilization: float) -> None:
        assert Path(model, "config.json").is_file() and 0 < gpu_memory_utilization <= 1

    def generate(
        self, prompts: list[str], sampling_params: list[SamplingParams], *, use_tqdm: bool
    ) -> list[Output]:
        assert not use_tqdm
        self.calls.append(len(prompts))
        return [Output(*pair) for pair in zip(prompts, sampling_params, strict=True)]


def loaded(tmp_path: Path) -> Any:
    make_tiny_model(tmp_path / "tiny")
    (tmp_path / "sampling.py").write_text(program())
    return load_interface(tmp_path / "sampling.py", models={"org/model": str(tmp_path / "tiny")})


def test_the_program_serves_batches_with_a_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ModuleType("vllm")
    stand_in.__dict__.update(LLM=LLM, SamplingParams=SamplingParams)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    tools = loaded(tmp_path)
    found = tools.generate("hello", seed=3, max_new_tokens=2)
    assert (found.text, found.ids, found.logprobs) == ("hello 3", [8, 9], [-0.8, -0.9])
    calls = [{"prompt": "hi" * n, "seed": n, "max_new_tokens": 3} for n in range(1, 5)]
    tools.check_batch("generate", calls)
    assert max(LLM.calls) == 4


def test_the_program_samples_from_vllm_itself(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    tools = loaded(tmp_path)
    greedy = tools.generate("hello world", temperature=0.0, max_new_tokens=4)
    assert len(greedy.ids) == len(greedy.logprobs) <= 4
    assert greedy == tools.generate("hello world", temperature=0.0, max_new_tokens=4)
