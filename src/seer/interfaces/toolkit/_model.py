"""A loaded model: its parts under the same names for every architecture, and its tokenizer.

`_parts` finds the parts of an architecture; `_interventions` reads and changes activations.
"""

import importlib
import importlib.util
import json
import os
import re
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from seer.errors import CallLimitError, MissingExtraError, ModelInputError

from ._limits import MAX_PROMPT_TOKENS
from ._parts import (
    Block,
    Part,
    Units,
    check_head,
    find_blocks,
    find_embeddings,
    find_final_norm,
    find_parts,
    find_units,
)
from ._records import Message, Stream, TemplateOptions

QUANTIZE_VARIABLE = "SEER_QUANTIZE"
"""The variable that says how the weights of all models are quantised at loading: 8bit or 4bit."""
Prompt = str | list[int]
"""A text, or token ids."""
_TEMPLATE_OWN = {
    *("messages", "tools", "documents", "add_generation_prompt", "raise_exception"),
    *("strftime_now", "bos_token", "eos_token", "pad_token", "unk_token"),
}
"""Variables that transformers passes to every chat template."""


_DECODER_SETTINGS = ("decoder_layers", "num_decoder_layers")
"""Settings that only encoder-decoder models have."""


class FairLock:
    """Lets one thread at a time run a model, in the order of their requests.

    Hooks on modules, an adapter that is switched off, and the capture of a CUDA graph would affect
    every other thread that runs the model. So the main thread and the model's engine take turns.
    The lock is reentrant. Use it as a context manager.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._holder = 0
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        ticket = object()
        with self._changed:
            if self._holder != me:
                self._line.append(ticket)
                try:
                    while self._holder or self._line[0] is not ticket:
                        self._changed.wait()
                finally:
                    # Also if an exception from outside ends the wait.
                    self._line.remove(ticket)
                    self._changed.notify_all()
                self._holder = me
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._holder = 0
                self._changed.notify_all()

    @property
    def wanted(self) -> bool:
        """Whether another thread is waiting for its turn."""
        return bool(self._line)


class Model:
    """A causal language model with its tokenizer.

    Attributes:
        name: The name that callers use.
        net: The transformers model.
        tokenizer: Its tokenizer.
        adapter: The `peft` model around it, or None.
        suggested: The generation settings that came with the checkpoint. They apply only if a
            caller passes them.
    """

    def __init__(self, name: str, net: Any, tokenizer: Any, adapter: Any = None) -> None:
        self.name = name
        self.net = net
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.sight: Any = None
        """The model as nnsight wraps it; set by `_interventions`."""
        self.engine: Any = None
        """The decoding engine; set by `_generate`."""
        self.readers: Any = None
        """The captured forward passes; set by `_reading`."""
        self.turn = FairLock()
        """A thread holds this while it runs the model."""
        self.plain = True
        """False while the model's adapter is switched off."""
        self.config: Any = net.config.get_text_config()
        _check_is_decoder_only(net, self.config)
        self.decoder: Any = net.get_decoder()
        self.head: Any = net.get_output_embeddings()
        self._head_checked = False
        # Otherwise the checkpoint's settings would apply to every argument that a caller omits.
        # With a repetition penalty, temperature 0 would not give the likeliest token.
        self.suggested: Any = net.generation_config
        net.generation_config = transformers.GenerationConfig()
        self.device: torch.device = net.get_input_embeddings().weight.device
        self.width: int = self.config.hidden_size
        self.layers: int = self.config.num_hidden_layers
        self.heads: int = getattr(self.config, "num_attention_heads", 0)
        self.vocabulary: int = self.head.weight.shape[0]
        self.context = _context(self.config)
        self.max_tokens = min(self.context, MAX_PROMPT_TOKENS)
        pad = tokenizer.pad_token_id
        self.pad: int = pad if pad is not None else (tokenizer.eos_token_id or 0)

    @classmethod
    def load(cls, name: str, folder: str) -> "Model":
        """Load a folder that `save_pretrained` made: a model, or an adapter."""
        base = base_folder(folder)
        if base is None:
            return cls(name, _load_net(folder), _load_tokenizer(folder))
        # Untyped, because the annotations of these libraries are too incomplete to check against.
        peft: Any = importlib.import_module("peft")
        adapter: Any = peft.PeftModel.from_pretrained(_load_net(base), folder)
        _check_is_inside(adapter)
        adapter.eval().requires_grad_(False)
        own = (Path(folder) / "tokenizer_config.json").is_file()
        tokenizer = _load_tokenizer(folder if own else base)
        return cls(name, adapter.get_base_model(), tokenizer, adapter)

    @contextmanager
    def without_adapter(self) -> Generator[None]:
        """Switch the adapter off while the context lasts."""
        if self.adapter is None:
            yield
            return
        with self.turn:
            try:
                self.plain = False
                with self.adapter.disable_adapter():
                    yield
            finally:
                self.plain = True
                # peft makes an adapter trainable when it switches the adapter on again.
                self.adapter.requires_grad_(False)

    @cached_property
    def blocks(self) -> Any:
        """The list of blocks.

        Raises:
            ModelInputError: The blocks of this architecture are not known.
        """
        return find_blocks(self.decoder)

    @cached_property
    def final_norm(self) -> Any:
        """The norm after the last block.

        Raises:
            ModelInputError: The final norm of this architecture is not known.
        """
        return find_final_norm(self.decoder)

    @cached_property
    def parts(self) -> list[Block]:
        """The parts of each block.

        Raises:
            ModelInputError: This architecture cannot be taken apart.
        """
        with self.turn:
            return find_parts(self.net)

    @cached_property
    def units(self) -> list[Units]:
        """The heads and neurons of each block.

        Raises:
            ModelInputError: The blocks of this architecture are not known.
        """
        with self.turn:
            return find_units(self.net)

    @cached_property
    def embeddings(self) -> dict[str, Part]:
        """The parts of the first block's input.

        Raises:
            ModelInputError: The blocks of this architecture are not known.
        """
        with self.turn:
            return find_embeddings(self.net)

    def site(self, layer: int, stream: Stream) -> Part:
        """The module at which this stream of block `layer` (from 1) is read and changed.

        Layer 0 is the input of the first block.

        Raises:
            ModelInputError: This architecture does not have such a part.
        """
        if stream == "residual":
            if layer == 0:
                return Part(self.blocks[0], at_input=True)
            return Part(self.blocks[layer - 1])
        if stream in ("attention", "mlp"):
            block = self.parts[layer - 1]
            return block.attention if stream == "attention" else block.mlp
        if stream == "middle":
            found, why = self.parts[layer - 1].middle, "its attention and MLP read the same stream"
        elif layer == 0:
            found, why = self.embeddings.get(stream), "models that rotate by position have none"
        else:
            name = "heads" if stream == "head_outputs" else stream
            found, why = self.units[layer - 1].parts.get(name), "mixtures of experts have none"
            if stream in ("queries", "keys", "values"):
                why = "models that compress keys and values have none"
        if found is None:
            where = f"block {layer} of " if layer else ""
            raise ModelInputError(
                f"{where}{type(self.net).__name__} has no {stream} that this interface can read "
                f"({why})"
            )
        return found

    def unembed(self, residual: Tensor) -> Tensor:
        """Logits, in float32, for activations of the residual stream after the last block."""
        return self.logits_of(self.final_norm(residual.to(self.head.weight.dtype)))

    def logits_of(self, normed: Tensor) -> Tensor:
        """Logits, in float32, for outputs of the final norm.

        Raises:
            ModelInputError: This architecture computes its logits in an unknown way.
        """
        if not self._head_checked:
            with self.turn:
                check_head(self.net, self._logits)
            self._head_checked = True
        return self._logits(normed)

    def _logits(self, normed: Tensor) -> Tensor:
        # Cohere multiplies logits by a setting, Granite divides them by one, Gemma 2 caps them.
        logits: Tensor = self.head(normed)
        logits = logits * (getattr(self.config, "logit_scale", None) or 1.0)
        logits = logits / (getattr(self.config, "logits_scaling", None) or 1.0)
        cap = getattr(self.config, "final_logit_softcapping", None)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return logits.float()

    def check_layer(self, layer: int, *, least: int = 0) -> int:
        """`layer` as a number from `least` to the last; negative ones count from the end.

        Raises:
            ModelInputError: There is no such layer.
        """
        found = layer + self.layers + 1 if layer < 0 else layer
        if not least <= found <= self.layers:
            raise ModelInputError(
                f"layer={layer!r}: this model has layers {least} to {self.layers}"
                + (" (0 is the embeddings)" if least == 0 else "")
            )
        return found

    def check_vector(self, what: str, vector: Any, width: int | None = None) -> Tensor:
        """A direction, in float32 on the model's device.

        Args:
            what: The name of the direction in errors.
            vector: The numbers.
            width: The required size; by default the width of the residual stream.

        Raises:
            ModelInputError: The direction has another size, or is not finite.
        """
        width = self.width if width is None else width
        tensor = torch.as_tensor(vector, dtype=torch.float32, device=self.device).flatten()
        if tensor.shape != (width,):
            raise ModelInputError(f"{what} has {tensor.numel()} numbers; it needs {width}")
        if not bool(torch.isfinite(tensor).all()):
            raise ModelInputError(f"{what} has numbers that are not finite")
        return tensor

    def encode(self, prompt: Prompt, *, room: int = 0, special: bool = True) -> list[int]:
        """A prompt's token ids.

        Args:
            prompt: Text, or token ids.
            room: The number of tokens that must fit after the prompt.
            special: Whether text gets the special tokens that the tokenizer adds.

        Raises:
            CallLimitError: The prompt has too many tokens.
            ModelInputError: The prompt has no tokens, or ids that the model does not have.
        """
        if isinstance(prompt, str):
            ids = self._tokens_of(prompt, special=special)
        else:
            ids = prompt
            if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
                raise ModelInputError(f"token ids must be from 0 to {self.vocabulary - 1}")
        if not ids:
            raise ModelInputError(f"the prompt {prompt!r} has no tokens")
        most = min(self.max_tokens, self.context - room)
        if len(ids) > most:
            raise CallLimitError(
                f"the prompt has {len(ids)} tokens; at most {most} fit"
                + (f" with {room} new ones" if room else "")
            )
        return ids

    def _tokens_of(self, text: str, *, special: bool) -> list[int]:
        # The output of a chat template may already begin with the special tokens.
        begin = self.tokenizer.bos_token
        special = special and not (begin and text.startswith(begin))
        try:
            return list(self.tokenizer(text, add_special_tokens=special)["input_ids"])
        except (TypeError, UnicodeEncodeError):
            if not _has_surrogates(text):
                raise
            raise ModelInputError(
                "the text has a lone surrogate, which a tokenizer cannot read"
            ) from None

    def token_id(self, text: str) -> int:
        """The first token of `text` as a continuation.

        Raises:
            ModelInputError: The text has no tokens.
        """
        ids = self._tokens_of(text, special=False)
        if not ids:
            raise ModelInputError(f"{text!r} has no tokens")
        return ids[0]

    def token_text(self, token: int) -> str:
        """A token as text."""
        return str(self.tokenizer.decode([token]))

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Tokens as texts, one by one."""
        return [self.token_text(i) for i in ids]

    def chat_text(
        self,
        messages: Sequence[Message],
        *,
        prefill: str = "",
        template: TemplateOptions | None = None,
    ) -> str:
        """The text that the chat template makes of a conversation, up to where the model continues.

        Args:
            messages: The conversation.
            prefill: How the answer begins.
            template: Options that the template reads, by name.

        Raises:
            ModelInputError: The model has no template, or the template does not read an option or
                rejects the messages.
        """
        if not self.tokenizer.chat_template:
            raise ModelInputError(
                f"{self.name!r} has no chat template; use generate() with a text instead"
            )
        options = self._check_template(template or {})
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **options
            )
            return str(text) + prefill
        except Exception as error:  # a template in a model's folder may raise anything
            raise ModelInputError(f"the chat template rejects these messages: {error}") from None

    def _check_template(self, options: TemplateOptions) -> TemplateOptions:
        if not options:
            return options
        known = _template_names(str(self.tokenizer.get_chat_template())) - _TEMPLATE_OWN
        unread = [name for name in options if name not in known]
        if unread:
            raise ModelInputError(
                f"the chat template of {self.name!r} does not read {unread[0]!r}; it reads "
                + (", ".join(map(repr, sorted(known))) or "no options")
            )
        return options

    def check_position(self, position: int, count: int) -> int:
        """`position` as an index from 0, for a prompt of `count` tokens.

        Raises:
            ModelInputError: There is no such token.
        """
        found = position + count if position < 0 else position
        if not 0 <= found < count:
            raise ModelInputError(f"position={position!r}: the prompt has {count} tokens")
        return found

    def suggested_settings(self) -> dict[str, float]:
        """What the checkpoint suggests, as arguments of `generate`."""
        found: dict[str, float] = {}
        if getattr(self.suggested, "do_sample", None):
            neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
            for name, default in neutral.items():
                value = getattr(self.suggested, name, None)
                found[name] = default if value is None else value
        penalty = getattr(self.suggested, "repetition_penalty", None)
        if penalty not in (None, 1.0):
            found["repetition_penalty"] = penalty
        return found

    def pad_rows(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Prompts as one batch: padded at the left, with mask and positions."""
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.pad, dtype=torch.long)
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, longest - len(row) :] = torch.tensor(row)
            mask[i, longest - len(row) :] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        found = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return {name: tensor.to(self.device) for name, tensor in found.items()}


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _template_names(template: str) -> set[str]:
    """The variables that a chat template reads."""
    jinja: Any = importlib.import_module("jinja2")
    meta: Any = importlib.import_module("jinja2.meta")
    # Remove tags of transformers for the assistant's words, which jinja2 does not know.
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    parsed = jinja.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    # The names include functions of jinja2 itself, such as `range`.
    return set(meta.find_undeclared_variables(parsed)) - set(jinja.defaults.DEFAULT_NAMESPACE)


def base_folder(folder: str) -> str | None:
    """The folder of an adapter's base; None for a model that is not an adapter."""
    config = Path(folder) / "adapter_config.json"
    if not config.is_file():
        return None
    return str(json.loads(config.read_text())["base_model_name_or_path"])


def _check_is_decoder_only(net: Any, config: Any) -> None:
    """Refuse the decoder of an encoder-decoder model.

    Its settings count the encoder's layers and heads. It also takes no positions, so a prompt in a
    batch with prompts of other lengths would get another answer than alone.

    Raises:
        ModelInputError: The model is such a decoder.
    """
    if any(hasattr(config, name) for name in _DECODER_SETTINGS):
        raise ModelInputError(
            f"{type(net).__name__} is the decoder of an encoder-decoder model, which this "
            "interface does not support: use a model that was trained as a decoder alone"
        )


def _check_is_inside(adapter: Any) -> None:
    """Refuse an adapter that changes the prompt, because Seer runs the model without such a change.

    Raises:
        ModelInputError: The adapter is such an adapter.
    """
    for config in adapter.peft_config.values():
        if config.is_prompt_learning:
            raise ModelInputError(
                f"the adapter learned a prompt ({config.peft_type.value.lower()}) and changes no "
                "weights, which this interface does not support: use one that changes weights, "
                "such as LoRA"
            )


def _context(config: Any) -> int:
    """The model's context length in tokens; a large default if its settings do not have one."""
    for name in ("max_position_embeddings", "max_seq_len"):
        if found := getattr(config, name, None):
            return int(found)
    return MAX_PROMPT_TOKENS


def _load_net(folder: str) -> Any:
    cuda = torch.cuda.is_available()
    several = cuda and torch.cuda.device_count() > 1
    auto: Any = transformers.AutoModelForCausalLM
    options: dict[str, Any] = {"dtype": "auto", "device_map": "auto" if several else None}
    quantized = _quantization()
    if quantized is not None:
        # Quantised weights cannot be moved or converted afterwards.
        options["quantization_config"] = quantized
        if cuda and not several:
            options["device_map"] = {"": 0}
        elif not cuda:
            options["dtype"] = torch.float32
    loaded: Any = auto.from_pretrained(folder, local_files_only=True, **options)
    if not getattr(loaded, "is_quantized", False):
        if not cuda and loaded.dtype in (torch.bfloat16, torch.float16):
            # CPUs compute faster in float32, and more exactly.
            loaded = loaded.float()
        if cuda and not several:
            loaded = loaded.to("cuda")
    return loaded.eval().requires_grad_(False)


def _quantization() -> Any:
    """The quantisation settings for transformers; None to load the weights unquantised.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
        ModelInputError: The variable has an unknown value.
    """
    asked = os.environ.get(QUANTIZE_VARIABLE)
    if not asked:
        return None
    if asked not in ("8bit", "4bit"):
        raise ModelInputError(f"{QUANTIZE_VARIABLE}={asked!r}: must be '8bit' or '4bit'")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError(
            f"{QUANTIZE_VARIABLE}={asked!r} needs bitsandbytes where the model runs; add "
            "'bitsandbytes' to SandboxConfig.python_packages"
        )
    config: Any = transformers.BitsAndBytesConfig
    if asked == "8bit":
        return config(load_in_8bit=True)
    computed = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return config(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=computed)


def _load_tokenizer(folder: str) -> Any:
    auto: Any = transformers.AutoTokenizer
    return auto.from_pretrained(folder, local_files_only=True)
