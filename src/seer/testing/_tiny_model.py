"""Tiny random language models, each with a tokenizer, for tests.

They load like any model of their architecture, generate nonsense, and need no download. Equal seeds
give equal models.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from seer.errors import MissingExtraError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Architecture = Literal["gpt2", "llama", "qwen2", "gemma2"]

_TEXT = (
    "the quick brown fox jumps over the lazy dog and runs through the quiet forest",
    "hello world, how are you today? I am fine, thank you very much for asking.",
    "a model reads tokens, keeps activations, and writes the next token it believes in",
    "0 1 2 3 4 5 6 7 8 9 + - * / = ( ) [ ] { } < > ! ? . , : ; ' \" @ # $ % & _",
)
_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = ["<|end|>", "<|pad|>", "<|unk|>", "<|user|>", "<|assistant|>", "<|system|>"]


def make_tiny_model(
    folder: Path,
    *,
    architecture: Architecture = "llama",
    layers: int = 2,
    width: int = 32,
    seed: int = 0,
) -> Path:
    """Save a random model and its tokenizer in `folder`, as `save_pretrained` does.

    Args:
        folder: The folder to save in; created if it is missing.
        architecture: The model's architecture.
        layers: Number of blocks.
        width: Size of the residual stream; a multiple of 8.
        seed: Equal seeds give equal weights.

    Returns:
        `folder`.

    Raises:
        MissingExtraError: torch or transformers is not installed.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise MissingExtraError(
            "tiny models need torch and transformers; run: pip install 'seer-interp[interp]', "
            "or run `seer demo` once"
        ) from error
    tokenizer = _train_tokenizer()
    config = _config(architecture, vocabulary=len(tokenizer), layers=layers, width=width)
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        model = cast("Any", AutoModelForCausalLM.from_config(config))  # pyright: ignore[reportUnknownMemberType]
    finally:
        torch.random.set_rng_state(state)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    folder.mkdir(parents=True, exist_ok=True)
    with _no_progress_bar():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    return folder


@contextmanager
def _no_progress_bar() -> Generator[None]:
    """Hide the progress bar of transformers while the context lasts."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _train_tokenizer() -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE(unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|end|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        chat_template=_CHAT,
    )


def _config(architecture: Architecture, *, vocabulary: int, layers: int, width: int) -> Any:
    from transformers import Gemma2Config, GPT2Config, LlamaConfig, Qwen2Config

    tokens: dict[str, Any] = {
        "vocab_size": vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
    }
    if architecture == "gpt2":
        return GPT2Config(n_layer=layers, n_embd=width, n_head=4, n_positions=256, **tokens)
    shape: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    if architecture == "llama":
        return LlamaConfig(**shape, **tokens)
    if architecture == "qwen2":
        return Qwen2Config(**shape, **tokens)
    return Gemma2Config(head_dim=width // 4, sliding_window=64, **shape, **tokens)
