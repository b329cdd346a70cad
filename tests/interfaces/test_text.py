"""Generated texts, compared with transformers alone."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer import interfaces
from seer.errors import ModelInputError
from seer.testing import load_interface
from tests.interfaces.conftest import TEXTS, Case

pytestmark = pytest.mark.full


def logprobs_of(case: Case, ids: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return case.net(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)


def test_greedy_text_is_what_the_model_finds_likeliest(case: Case) -> None:
    prompt = case.ids(TEXTS[0])[0].tolist()
    found = case.tools.generate(TEXTS[0], max_new_tokens=8)
    written: list[int] = []
    for _ in range(8):
        token = int(logprobs_of(case, prompt + written)[-1].argmax())
        if token == case.tokenizer.eos_token_id:
            break
        written.append(token)
    assert found.ids == written
    assert found.text == case.tokenizer.decode(written, skip_special_tokens=True)
    own = logprobs_of(case, prompt + written)
    expected = [float(own[len(prompt) - 1 + i, token]) for i, token in enumerate(written)]
    assert found.logprobs == pytest.approx(expected, abs=1e-4)
    assert found.finish == ("length" if len(written) == 8 else "stop")


def test_concurrent_texts_are_the_same_as_single_ones(case: Case) -> None:
    check = case.tools.check_batch
    check("generate", [{"prompt": text, "max_new_tokens": 12} for text in TEXTS], atol=1e-4)
    sampled = [
        {"prompt": text, "seed": i, "temperature": 1.3, "top_p": 0.95, "max_new_tokens": 12}
        for i, text in enumerate(TEXTS * 2)
    ]
    check("generate", sampled, atol=1e-4)
    messages = [[{"role": "user", "content": text}] for text in TEXTS]
    chats = [{"messages": m, "seed": i, "max_new_tokens": 8} for i, m in enumerate(messages)]
    check("chat", chats, atol=1e-4)
    check("next_tokens", [(text,) for text in TEXTS], atol=1e-5)


def test_seeds_choose_the_sample(llama: Case) -> None:
    def write(seed: int, **options: Any) -> list[int]:
        settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 8, **options}
        return llama.tools.generate(TEXTS[0], seed=seed, **settings).ids

    assert write(1) == write(1)
    assert len({tuple(write(seed)) for seed in range(5)}) == 5
    many = llama.tools.sample(TEXTS[0], 3, seed=4, max_new_tokens=8)
    assert [one.ids for one in many] == [write(seed) for seed in (4, 5, 6)]
    assert write(1, top_k=1) == llama.tools.generate(TEXTS[0], max_new_tokens=8).ids


def test_samples_follow_the_distribution(llama: Case) -> None:
    import torch
    from scipy.stats import chisquare

    names = llama.tools.module.generate.__globals__
    choice, settings = names["Choice"], names["Settings"]
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, -30.0])
    draws = 4000
    one = choice(list(range(draws)), settings(1, temperature=2.0, top_k=4))
    one(torch.zeros(draws, 1, dtype=torch.long), logits.repeat(draws, 1))
    seen = np.bincount(one.ids[0].numpy(), minlength=6)
    kept = (logits.double() / 2).masked_fill(logits < 0, -torch.inf).softmax(-1).numpy()
    assert seen[kept == 0].sum() == 0
    assert chisquare(seen[kept > 0], kept[kept > 0] * draws).pvalue > 1e-4
    expected = logits.log_softmax(-1)[one.ids[0]]
    assert torch.allclose(one.logprobs[0], expected, atol=1e-6)


def test_writing_ends_at_stop_texts_and_end_tokens(llama: Case) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 24}
    whole = llama.tools.sample(TEXTS[1], 1, seed=7, **settings)[0]
    tokens = [llama.tokenizer.decode([i]) for i in whole.ids]
    stop = next(token for token in tokens[8:] if token.isascii() and token.strip())
    cut = llama.tools.generate(TEXTS[1], seed=7, stop=(stop,), **settings)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish == "stop"
    assert len(cut.ids) == len(cut.logprobs) < len(whole.ids)
    many = llama.tools.sample(TEXTS[1], 64, temperature=5.0, max_new_tokens=24)
    found = next(one for one in many if one.finish == "stop")
    assert 0 not in found.ids and len(found.ids) < 24
    assert len(found.logprobs) == len(found.ids)


def test_next_tokens_are_the_softmax_of_the_logits(case: Case) -> None:
    found = case.tools.next_tokens(TEXTS[0], k=5, among=("hello", " world"))
    own = case.run(TEXTS[0]).logits[0, -1].softmax(-1)
    values, ids = own.topk(5)
    assert [one.id for one in found.top] == ids.tolist()
    assert [one.score for one in found.top] == pytest.approx(values.tolist(), abs=1e-6)
    first = [
        case.tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in ("hello", " world")
    ]
    assert [one.id for one in found.among] == first
    assert [one.score for one in found.among] == pytest.approx(own[first].tolist(), abs=1e-6)
    assert found.entropy == pytest.approx(float(-(own * own.log()).sum()), abs=1e-4)


def test_an_answer_goes_on_from_its_prefill(case: Case) -> None:
    """transformers continues a final message in this way; its own generate gives the same ids."""
    import torch

    messages = [{"role": "user", "content": "hello you"}]
    texts = ("the quick", "hello wo", "a model reads", "thank")
    lengths: list[int] = []
    for prefill in texts:
        text = case.tools.chat_prompt(messages, prefill=prefill)
        begun = [*messages, {"role": "assistant", "content": prefill}]
        assert text == case.tokenizer.apply_chat_template(
            begun, tokenize=False, continue_final_message=True
        )
        found = case.tools.chat(messages, prefill=prefill, max_new_tokens=6)
        ids = case.ids(text)
        with torch.no_grad():
            own = case.net.generate(
                input_ids=ids, max_new_tokens=6, do_sample=False, pad_token_id=0
            )
        assert found.ids == own[0, ids.shape[1] :].tolist()[: len(found.ids)]
        assert not found.text.startswith(prefill)
        lengths.append(len(found.ids))
    assert max(lengths) > 0
    calls = [{"messages": messages, "prefill": p, "seed": 0} for p in texts]
    case.tools.check_batch("chat", calls, atol=1e-4)


def test_options_of_the_template_apply_or_are_refused(llama: Case, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    template = (
        "{%- for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{%- endfor %}"
        "{%- set note = namespace(x=1) %}{%- for i in range(1) %}{%- endfor %}"
        "{%- if add_generation_prompt %}assistant: "
        "{%- if enable_thinking is defined and enable_thinking is false %}<think></think>"
        "{%- endif %}{{ date or '' }}{%- endif %}"
    )
    folder = tmp_path / "thinking"
    shutil.copytree(llama.folder, folder)
    tokenizers: Any = AutoTokenizer
    tokenizer = tokenizers.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    tools: Any = load_interface(interfaces.whitebox, models={"tiny": str(folder)})
    messages = [{"role": "user", "content": "hello"}]
    for options in ({}, {"enable_thinking": False}, {"enable_thinking": True, "date": "today"}):
        expected = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
        assert tools.chat_prompt(messages, template=options) == expected
        ids = tools.chat(messages, template=options, max_new_tokens=4).ids
        assert ids == tools.generate(expected, max_new_tokens=4).ids
    message = "does not read 'thinking'; it reads 'date', 'enable_thinking'"
    with pytest.raises(ModelInputError, match=message):
        tools.chat(messages, template={"thinking": False})
    for name in ("messages", "add_generation_prompt", "note"):
        with pytest.raises(ModelInputError, match=f"does not read '{name}'"):
            tools.chat_prompt(messages, template={name: False})
    with pytest.raises(ModelInputError, match="it reads no options"):
        llama.tools.chat_prompt(messages, template={"enable_thinking": False})


@pytest.mark.parametrize("at_end", [False, True])
def test_chat_adds_no_special_tokens_to_the_template(
    llama: Case, tmp_path: Path, *, at_end: bool
) -> None:
    """The template wrote all special tokens; transformers adds none when it tokenizes a chat."""
    import torch
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    folder = tmp_path / "adding"
    shutil.copytree(llama.folder, folder)
    tokenizers: Any = AutoTokenizer
    tokenizer = tokenizers.from_pretrained(folder)
    extra = tokenizer.convert_tokens_to_ids("<|unk|>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|unk|>" if at_end else "<|unk|> $A",
        pair="$A $B",
        special_tokens=[("<|unk|>", extra)],
    )
    tokenizer.save_pretrained(folder)
    tools: Any = load_interface(interfaces.whitebox, models={"tiny": str(folder)})
    messages = [{"role": "user", "content": "the quick fox"}]
    ids = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    text = tools.chat_prompt(messages)
    assert tools.tokenize(text, special=False).ids == ids
    assert extra in tools.tokenize(text).ids and extra not in ids
    with torch.no_grad():
        own = llama.net(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    top = own.topk(40).indices.tolist()
    for seed in range(3):
        found = tools.chat(messages, seed=seed, temperature=1.0, top_k=40, max_new_tokens=1)
        for token, chance in zip(found.ids, found.logprobs, strict=True):
            assert token in top and chance == pytest.approx(float(own[token]), abs=1e-4)
    assert tools.chat(messages, max_new_tokens=5) == tools.generate(ids, max_new_tokens=5)


def test_chat_goes_through_the_template(llama: Case) -> None:
    messages = [{"role": "user", "content": "hello"}]
    text = llama.tools.chat_prompt(messages)
    assert text == llama.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert llama.tools.chat(messages).ids == llama.tools.generate(text).ids


def test_tokens_and_their_ids_are_interchangeable(llama: Case) -> None:
    tokens = llama.tools.tokenize(TEXTS[0])
    assert tokens.ids == llama.ids(TEXTS[0])[0].tolist()
    assert "".join(tokens.tokens) == TEXTS[0]
    assert llama.tools.generate(tokens.ids) == llama.tools.generate(TEXTS[0])


def test_what_a_checkpoint_suggests_applies_only_if_asked_for(llama: Case, tmp_path: Path) -> None:
    """A penalty, beams or a minimum length in `generation_config.json` change no result."""
    from seer import interfaces
    from seer.testing import load_interface

    folder = tmp_path / "suggesting"
    shutil.copytree(llama.folder, folder)
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.9}
    beams = {"num_beams": 4, "min_new_tokens": 5, "no_repeat_ngram_size": 2}
    (folder / "generation_config.json").write_text(json.dumps({**settings, **beams}))
    tools: Any = load_interface(interfaces.whitebox, models={"suggesting": str(folder)})
    plain: dict[str, Any] = {"max_new_tokens": 12}
    drawn: dict[str, Any] = {**plain, "temperature": 1.3, "seed": 3}
    messages = [{"role": "user", "content": "hello"}]
    for name, args, kwargs in (
        ("generate", (TEXTS[0],), plain),
        ("generate", (TEXTS[0],), drawn),
        ("sample", (TEXTS[0], 1), plain),
        ("chat", (messages,), plain),
    ):
        found, expected = (getattr(one, name)(*args, **kwargs) for one in (tools, llama.tools))
        if name == "sample":
            (found,), (expected,) = found, expected
        # Each loaded interface has classes of its own.
        assert vars(found) == vars(expected)
    (info,) = tools.models()
    assert info.generation == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 20,
        "repetition_penalty": 1.9,
    }
    assert tools.generate(TEXTS[0], **plain, **info.generation)
    assert llama.tools.models()[0].generation == {}


def test_a_repetition_penalty_is_transformers_own(llama: Case) -> None:
    import torch

    ids = llama.ids(TEXTS[0])
    expected = llama.net.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=16,
        repetition_penalty=1.8,
    )[0, ids.shape[1] :].tolist()
    settings: dict[str, Any] = {"max_new_tokens": 16, "repetition_penalty": 1.8}
    found = llama.tools.generate(TEXTS[0], **settings)
    assert found.ids == expected[: len(found.ids)]
    assert found.ids != llama.tools.generate(TEXTS[0], max_new_tokens=16).ids
    calls = [{"prompt": text, **settings} for text in TEXTS]
    llama.tools.check_batch("generate", calls, atol=1e-4)
    prompt = ids[0].tolist()
    own = logprobs_of(llama, prompt + found.ids)
    places = [float(own[len(prompt) - 1 + i, token]) for i, token in enumerate(found.ids)]
    assert found.logprobs == pytest.approx(places, abs=1e-4)
