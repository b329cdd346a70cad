"""Activations, attention and lenses, compared with transformers' own outputs."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from typing import Any

import numpy as np
import pytest

from tests.interfaces.conftest import TEXTS, Case

pytestmark = pytest.mark.full


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> bool:
    return bool(np.allclose(np.asarray(found), np.asarray(expected), atol=tolerance, rtol=1e-4))


def test_activations_equal_the_hidden_states(case: Case) -> None:
    states = case.run(TEXTS[0]).hidden_states
    for layer in range(3):
        assert close(case.tools.activations(TEXTS[0], layer), states[layer][0])
    one = case.tools.activations(TEXTS[0], 1, position=-2)
    assert isinstance(one, np.ndarray) and one.dtype == np.float32
    assert close(one, states[1][0, -2])
    last = case.tools.activations(TEXTS[0], -1)
    decoder = case.net.get_decoder()
    norm = decoder.ln_f if case.architecture == "gpt2" else decoder.norm
    import torch

    assert close(norm(torch.as_tensor(last)).detach(), states[3][0])


def test_what_a_block_adds_is_attention_and_mlp(case: Case) -> None:
    before, after = (case.tools.activations(TEXTS[0], layer) for layer in (1, 2))
    parts = [case.tools.activations(TEXTS[0], 2, stream=s) for s in ("attention", "mlp")]
    assert close(before + parts[0] + parts[1], after)


def test_concurrent_readings_are_the_same_as_single_ones(case: Case) -> None:
    layers = (0, 3, 1, 2)
    check = case.tools.check_batch
    calls = [{"prompt": t, "layer": n} for t, n in zip(TEXTS, layers, strict=True)]
    places = [{**call, "position": p} for call, p in zip(calls, (None, -1, 0, 1), strict=True)]
    check("activations", places, rtol=1e-4, atol=2e-5)
    later = [{**call, "layer": call["layer"] or 1} for call in places]
    for stream in ("attention", "mlp"):
        check("activations", [{**c, "stream": stream} for c in later], rtol=1e-4, atol=2e-5)
    heads = [
        {"prompt": t, "layer": 2, "head": h} for t, h in zip(TEXTS, (None, 0, 3, 1), strict=True)
    ]
    check("attention", heads, rtol=1e-4, atol=1e-6)
    check("logit_lens", [{"prompt": t, "position": -1} for t in TEXTS], rtol=1e-3, atol=1e-5)


def test_held_activations_stay_and_are_not_tied_to_their_batch(case: Case) -> None:
    held = case.tools.hold_activations(TEXTS[0], 1)
    assert close(held.value, case.tools.activations(TEXTS[0], 1))
    function = case.tools.module.hold_activations
    both = function(list(TEXTS[:2]), [1, 1], position=[None, -1], unit=[None, None])
    assert close(both[0].value, held.value)
    assert both[0].value.untyped_storage().nbytes() == both[0].value.numel() * 4


def test_attention_patterns_are_the_models(case: Case) -> None:
    expected = case.run(TEXTS[0]).attentions
    config = case.tools.module.models.__globals__["find"](None).net.config
    usual = config._attn_implementation
    for layer in (1, 3):
        found = case.tools.attention(TEXTS[0], layer)
        assert close(found, expected[layer - 1][0])
        assert np.allclose(found.sum(-1), 1, atol=1e-5)
        assert np.allclose(np.triu(found, 1), 0)
    assert close(case.tools.attention(TEXTS[0], 2, head=1), expected[1][0, 1])
    assert config._attn_implementation == usual


def test_the_lens_ends_in_the_models_own_distribution(case: Case) -> None:
    rows = case.tools.logit_lens(TEXTS[0], k=5)
    assert [row.layer for row in rows] == [0, 1, 2, 3]
    output = case.run(TEXTS[0])
    own = output.logits[0, -1].softmax(-1)
    values, ids = own.topk(5)
    assert [one.id for one in rows[-1].top] == ids.tolist()
    assert [one.score for one in rows[-1].top] == pytest.approx(values.tolist(), abs=1e-5)
    decoder = case.net.get_decoder()
    norm = decoder.ln_f if case.architecture == "gpt2" else decoder.norm
    early = case.net.get_output_embeddings()(norm(output.hidden_states[1][0, -1])).detach()
    if case.architecture == "gemma2":
        cap = case.net.config.final_logit_softcapping
        early = (early / cap).tanh() * cap
    assert rows[1].top[0].id == int(early.argmax())
    assert rows[1].top[0].score == pytest.approx(float(early.softmax(-1).max()), abs=1e-5)


def test_a_tuned_lens_reads_held_out_text_better(case: Case) -> None:
    words = TEXTS[2].split()
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(words, 12)) for _ in range(120)]
    fitted = case.tools.fit_lens(texts, ridge=1e-3)
    assert fitted.plain[-1] == fitted.tuned[-1] == pytest.approx(0, abs=1e-5)
    for layer in range(3):
        assert fitted.tuned[layer] < fitted.plain[layer]
    rows = case.tools.logit_lens(texts[0], lens=fitted.lens)
    assert rows[-1] == case.tools.logit_lens(texts[0])[-1]
    assert rows[0] != case.tools.logit_lens(texts[0])[0]
