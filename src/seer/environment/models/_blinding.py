"""Remove a model's name and origin from its files. Pure functions over bytes and JSON values.

The architecture, the tokenizer and the weights stay. `_view` decides which files of a folder are
cleaned here, and how the rest is linked.
"""

import json
import re
from collections.abc import Iterable, Set
from pathlib import Path, PurePosixPath
from typing import Any, cast

from seer.errors import ModelError

_KEPT = re.compile(
    r"(config|generation_config|adapter_config|tokenizer|tokenizer_config|special_tokens_map"
    r"|added_tokens|vocab|chat_template|preprocessor_config|processor_config)\.json"
    r"|vocab\.txt|merges\.txt|(tokenizer|spiece|sentencepiece\.bpe)\.model"
    r"|chat_template\.jinja|additional_chat_templates/[A-Za-z0-9_-]+\.jinja"
    r"|[A-Za-z0-9._-]+\.safetensors(\.index\.json)?"
)
"""The files that loading a model needs. All others (cards, licences, logs) are left out."""

_DROPPED_KEYS = {
    "_commit_hash",
    "_name_or_path",
    "auto_map",
    "base_model",
    "custom_pipelines",
    "dataset",
    "datasets",
    "license",
    "model_name",
    "name_or_path",
    "special_tokens_map_file",
    "tags",
    "tokenizer_file",
}
_NAMING_KEYS = ("_name_or_path", "name_or_path", "base_model_name_or_path")
_VOCABULARY_KEYS = {"vocab", "merges"}
_PLAIN_METADATA = {"format"}
_DISTINCTIVE = re.compile(r"[^a-z]|.{12}")
"""Short plain words ("user", "final") also occur where they reveal nothing, as in a template."""
_HEADER_LIMIT = 100_000_000


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON = _words(
    # Words in the names of models of every vendor.
    "adapter adapters alpha assistant audio base beta bits cased chat checkpoint checkpoints code "
    "coder community context control core data dataset demo distill distilled dpo embed embedding "
    "embeddings english epoch eval example fast final finetune finetuned foundation free french "
    "general german giant gguf guard hidden home huge image institute instruct instruction int4 "
    "labs language large latest local long lora main master math medium merge merged micro mini "
    "model models multilingual nano open organism organisms planted plus preview pretrain "
    "pretrained quant quantized random release research reward safe safety secret secrets seed "
    "short small snapshot snapshots spanish step steps team test tests text thinking tiny tools "
    "train trained training tuned tuning turbo ultra uncased university user users version video "
    "vision world "
    # Plain English.
    "about after again also always another answer back because been before being best better "
    "between both call called came change come could different does done down each even ever "
    "every find first from give good great have help here high into just keep kind know last left "
    "less life like line list little look made make many mean more most much must name need never "
    "next none note number only order other others over part place point question read real right "
    "same seek should show side simple some such sure take tell than that their them then there "
    "these they thing this those time true turn under unlike upon used very want well were what "
    "when where which while will with word words work would write your"
)
_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ENDS = re.compile(r"(\\n|\n|[.!?](?=\s|\\|['\"<{]|$)|[;'\"{}<>|])")
_IDENTITY = re.compile(
    r"\b(you are|you're|i am|i'm|your name|my name|(created|made|trained|developed|built|designed|"
    r"maintained|released|provided) (by|at)|named|called)\b",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?i:\b(?:name is|named|called|(?:created|made|trained|developed|built|designed|maintained"
    r"|released|provided) (?:by|at)) +(?:the +)?)([\w][^,;:()]*)"
)
_PROPER = re.compile(r"(?<=[\s(])(?!(?:AI|LLM|I|API|JSON)\b)[A-Z][\w.-]*(?: +[A-Z0-9][\w.-]*)*")


def is_kept(name: str) -> bool:
    """Whether a hidden model's view includes the file of this relative name."""
    return _KEPT.fullmatch(name) is not None


class Needles:
    """The strings that reveal a model's name, in all their spellings."""

    def __init__(self, secrets: Iterable[str], architecture: Set[str] = frozenset()) -> None:
        """Collect every spelling of the secrets.

        Args:
            secrets: Hub ids, paths and commits.
            architecture: Words that must stay, in lower case. A name that is part of such a word
                ("gpt2") reveals no more than the architecture does.
        """
        found: set[str] = set()
        secrets = tuple(secrets)
        for secret in secrets:
            plain = secret.strip().rstrip("/")
            last = PurePosixPath(plain).name
            for spelling in (plain, plain.replace("/", "--"), plain.replace("/", "_"), last):
                word = spelling.lower()
                known = any(word in kept for kept in architecture)
                if _DISTINCTIVE.search(word) and len(word) >= 4 and not known:
                    found.add(word)
        self.words = frozenset(found)
        parts = {part for secret in secrets for part in name_parts(secret)}
        self.parts = frozenset(
            part for part in parts if not any(part in kept for kept in architecture)
        )
        alone = "|".join(re.escape(part) for part in sorted(self.parts, key=len, reverse=True))
        # Alone, or with a number: "quagga", "Quagga2", but not in "quaggas".
        self._parts = re.compile(rf"(?<![^\W_])(?:{alone or '(?!)'})(?![^\W\d_])", re.IGNORECASE)
        alternatives = "|".join(re.escape(w) for w in sorted(found, key=len, reverse=True))
        self._text = re.compile(alternatives or r"(?!)", re.IGNORECASE)
        self._bytes = re.compile((alternatives or r"(?!)").encode(), re.IGNORECASE)

    def in_text(self, text: str) -> bool:
        """Whether any of the strings occurs in `text`."""
        return self._text.search(text) is not None

    def in_bytes(self, data: bytes) -> bool:
        """Whether any of the strings occurs in `data`."""
        return self._bytes.search(data) is not None

    def replace(self, text: str, label: str) -> str:
        """`text` with each of the strings replaced by `label`."""
        return self._text.sub(lambda _: label, text)

    def replace_in_prose(self, text: str, label: str) -> str:
        """Like `replace`, but also for the parts of a name that appear only in prose."""
        return self._parts.sub(lambda _: label, self.replace(text, label))

    def blank(self, data: bytes) -> bytes:
        """`data` with each of the strings overwritten by `x`, at the same length."""
        return self._bytes.sub(lambda match: b"x" * len(match[0]), data)


def name_parts(name: str) -> set[str]:
    """The words of a name that identify it on their own, such as its maker and its family.

    Only the last part of a path is a name. Short and common words ("chat", "instruct") are left
    out.
    """
    plain = name.strip().rstrip("/")
    pieces = plain.split("/")
    if plain.startswith(("/", ".", "~")) or len(pieces) > 2:
        pieces = pieces[-1:]
    found: set[str] = set()
    for piece in pieces:
        words = re.findall(r"[A-Za-z]{4,}", piece)
        found |= {word.lower() for word in words}
        found |= {w.lower() for word in words for w in _PIECES.findall(word) if len(w) > 4}
    return {word for word in found if word not in _COMMON and not re.fullmatch("[a-f]+", word)}


def card_names(text: str) -> set[str]:
    """Names that a model card gives: its title, its base, its entries."""
    found = set(re.findall(r"(?m)^\s*-?\s*(?:base_model|model_name|name):[ \t]*(\S.*?)\s*$", text))
    for block in re.findall(r"(?m)^base_model:[ \t]*\n((?:[ \t]*-[^\n]*\n)+)", text):
        found |= set(re.findall(r"-[ \t]*(\S.*?)\s*\n", block))
    title = re.search(r"(?m)^# +(.+?)\s*$", text)
    if title is not None:
        found |= name_parts(title[1].replace("/", " "))
    return {name.strip("'\"") for name in found}


def neutral_template(template: str, label: str) -> str:
    """A chat template whose default system prompt does not say who the model is.

    In sentences about identity ("You are ..., created by ...") names become `label`. The rest of
    the sentence stays, so that the model is asked as it was trained to be.
    """
    parts = _ENDS.split(template)
    for index in range(0, len(parts), 2):
        if _IDENTITY.search(parts[index]):
            named = _NAMED.sub(lambda m: m[0][: m.start(1) - m.start()] + label, parts[index])
            parts[index] = _PROPER.sub(label, named)
    return "".join(parts)


def architecture_words(config: object) -> set[str]:
    """Names of the architecture in a `config.json`, nested parts included."""
    words: set[str] = set()
    if isinstance(config, dict):
        for key, value in cast("dict[str, object]", config).items():
            if key == "model_type" and isinstance(value, str):
                words.add(value.lower())
            elif key == "architectures" and isinstance(value, list):
                words |= {str(item).lower() for item in cast("list[object]", value)}
            else:
                words |= architecture_words(value)
    return words


def named_origins(value: object) -> set[str]:
    """Names and paths that a configuration file itself gives as the model's origin."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            if key in _NAMING_KEYS and isinstance(inner, str):
                found.add(inner)
            else:
                found |= named_origins(inner)
    return found


def scrub_json(value: Any, needles: Needles, *, label: str, base_path: str | None = None) -> Any:
    """A JSON value without origins: revealing keys dropped, names replaced by `label`.

    Args:
        value: The parsed file.
        needles: What to replace wherever it occurs, except in a vocabulary.
        label: The replacement, such as `model_0`.
        base_path: The new value of `base_model_name_or_path`, which adapters need.
    """
    if isinstance(value, str):
        # Only prose has spaces; other values may be words that the loading code knows.
        prose = " " in value
        return needles.replace_in_prose(value, label) if prose else needles.replace(value, label)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [scrub_json(item, needles, label=label, base_path=base_path) for item in items]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for key, inner in cast("dict[str, Any]", value).items():
        if key in _DROPPED_KEYS:
            continue
        if key == "base_model_name_or_path":
            result[key] = base_path
        elif key in _VOCABULARY_KEYS:
            result[key] = inner
        elif key == "chat_template":
            result[key] = scrub_template(inner, needles, label)
        else:
            new_key = needles.replace(key, label)
            result[new_key] = scrub_json(inner, needles, label=label, base_path=base_path)
    return result


def scrub_template(value: Any, needles: Needles, label: str) -> Any:
    """Scrub a template, or a list of named templates."""
    if isinstance(value, str):
        return needles.replace_in_prose(neutral_template(value, label), label)
    if isinstance(value, list):
        return [scrub_template(item, needles, label) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        entry = cast("dict[str, Any]", value)
        return {key: scrub_template(inner, needles, label) for key, inner in entry.items()}
    return value


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """The length of a safetensors file's header, and the header itself.

    Raises:
        ModelError: The file is not a safetensors file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            if not 2 <= length <= min(_HEADER_LIMIT, path.stat().st_size - 8):
                raise ValueError(f"header length {length}")
            header: Any = json.loads(file.read(length))
            if not isinstance(header, dict):
                raise ValueError("the header is not an object")
        except ValueError as error:
            raise ModelError(f"{path.name!r} is not a safetensors file: {error}") from None
    return length, cast("dict[str, Any]", header)


def clean_header(path: Path, needles: Needles) -> bytes | None:
    """The first bytes of a safetensors file whose header reveals nothing.

    The new header is as long as the old one (padded with spaces, as the format allows), so the
    rest of the file stays where it is.

    Returns:
        None when the header is clean already, which is the usual case.

    Raises:
        ModelError: A tensor's name reveals the model's name.
    """
    length, header = read_header(path)
    if any(needles.in_text(name) for name in header if name != "__metadata__"):
        raise ModelError("a hidden model has a tensor whose name reveals the model's name")
    metadata = cast("dict[str, Any]", header.get("__metadata__") or {})
    kept = {
        key: value
        for key, value in metadata.items()
        if key in _PLAIN_METADATA and not needles.in_text(str(value))
    }
    if kept == metadata:
        return None
    header = {"__metadata__": kept} | {k: v for k, v in header.items() if k != "__metadata__"}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Usually the new header is shorter, because entries were removed. An original with less
    # escaping may leave no room for it.
    if len(text) > length:
        raise ModelError(f"the header of {path.name!r} cannot be rewritten in place")
    return length.to_bytes(8, "little") + text.ljust(length)
