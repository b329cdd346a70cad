"""Tiny models of each architecture, and the white-box tools over each, loaded once."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ARCHITECTURES = ("gpt2", "llama", "qwen2", "gemma2")
TEXTS = (
    "hello world, how are you today?",
    "the quick brown fox",
    "a model reads tokens, keeps activations, and writes the next token it believes in",
    "hello",
)


class Case:
    """One architecture: the tools, and the same model loaded by transformers alone."""

    def __init__(self, architecture: str, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from seer import interfaces
        from seer.testing import load_interface

        self.architecture = architecture
        self.folder = folder
        self.tools: Any = load_interface(interfaces.whitebox, models={"tiny": str(folder)})
        auto: Any = AutoModelForCausalLM
        # Computed in the simplest way, to check the faster ones.
        self.net: Any = auto.from_pretrained(folder, attn_implementation="eager").eval()
        tokenizers: Any = AutoTokenizer
        self.tokenizer: Any = tokenizers.from_pretrained(folder)

    def ids(self, text: str) -> Any:
        """A text's token ids, as a batch of one."""
        return self.tokenizer(text, return_tensors="pt")["input_ids"]

    def run(self, text: str) -> Any:
        """The model's whole output for a text alone."""
        import torch

        with torch.no_grad():
            return self.net(
                input_ids=self.ids(text), output_hidden_states=True, output_attentions=True
            )

    @property
    def blocks(self) -> Any:
        """The model's blocks."""
        decoder = self.net.get_decoder()
        return decoder.h if self.architecture == "gpt2" else decoder.layers


def make(folder: Path, architecture: str, *, seed: int = 0) -> Path:
    """A tiny model whose weights are large enough for its parts to matter."""
    import torch
    from transformers import AutoModelForCausalLM

    from seer.testing import make_tiny_model

    made: Any = make_tiny_model
    made(folder, architecture=architecture, layers=3, width=32, seed=seed)
    auto: Any = AutoModelForCausalLM
    net: Any = auto.from_pretrained(folder)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim == 2 and "wpe" not in name:
                weight.mul_(6.0)
    net.save_pretrained(folder)
    return folder


def make_adapter(base: Path, folder: Path) -> Path:
    """A LoRA adapter with random weights that are large enough to change the model's answers."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    library: Any = peft
    torch.manual_seed(5)  # pyright: ignore[reportUnknownMemberType]
    gpt2 = "gpt2" in base.name
    config = library.LoraConfig(
        r=4,
        target_modules=["c_attn", "c_proj"] if gpt2 else ["q_proj", "down_proj"],
        init_lora_weights=False,
        fan_in_fan_out=gpt2,
        task_type="CAUSAL_LM",
    )
    library.get_peft_model(auto.from_pretrained(base), config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Gives the case of an architecture, made on first use."""
    import torch

    # More threads would only wait for each other: the models are tiny.
    torch.set_num_threads(1)
    made: dict[str, Case] = {}

    def case(architecture: str) -> Case:
        if architecture not in made:
            folder = tmp_path_factory.mktemp("models") / architecture
            made[architecture] = Case(architecture, make(folder, architecture))
        return made[architecture]

    return case


@pytest.fixture(params=ARCHITECTURES)
def case(request: pytest.FixtureRequest, cases: Callable[[str], Case]) -> Case:
    """Each architecture in turn."""
    return cases(request.param)


@pytest.fixture
def llama(cases: Callable[[str], Case]) -> Case:
    """One architecture, for tests that do not depend on it."""
    return cases("llama")
