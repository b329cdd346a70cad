"""Changing activations: steering, patching and attribution, compared with hooks and identities."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.interfaces.conftest import TEXTS, Case

pytestmark = pytest.mark.full


@contextmanager
def hooked(module: Any, change: Callable[[Any], Any]) -> Generator[None]:
    def hook(_module: Any, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])  # pyright: ignore[reportUnknownArgumentType]
        return change(output)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def probabilities(case: Case, text: str, steering: list[Any]) -> Any:
    found = case.tools.next_tokens(text, k=400, steering=steering)
    out = np.zeros(400)
    out[[one.id for one in found.top]] = [one.score for one in found.top]
    return out


def steer(**fields: Any) -> dict[str, Any]:
    plain = {"layer": 2, "direction": None, "mode": "add", "scale": 1.0}
    return {**plain, "stream": "residual", "position": None, **fields}


def direction(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=32).astype(np.float32)


def test_steering_does_what_a_hook_does(case: Case) -> None:
    import torch

    vector = torch.tensor(direction())
    unit = vector / vector.norm()
    block = case.blocks[1]
    changes: dict[str, Callable[[Any], Any]] = {
        "add": lambda x: x + 4 * vector,
        "project_out": lambda x: x - (x @ unit)[..., None] * unit,
        "ablate": lambda x: x * 0,
    }
    for mode, change in changes.items():
        asked = steer(mode=mode, scale=4.0, direction=None if mode == "ablate" else direction())
        with hooked(block, change):
            expected = case.run(TEXTS[0]).logits[0, -1].softmax(-1)
        found = probabilities(case, TEXTS[0], [asked])
        assert np.allclose(found, expected, atol=1e-5), mode
        assert not np.allclose(found, probabilities(case, TEXTS[0], []), atol=1e-5)


def test_ablating_and_adding_back_restores_the_logits(case: Case) -> None:
    before = probabilities(case, TEXTS[0], [])
    for stream in ("residual", "attention", "mlp"):
        own = np.asarray(case.tools.activations(TEXTS[0], 2, position=-1, stream=stream))
        at: dict[str, Any] = {"stream": stream, "position": -1}
        gone = [steer(mode="ablate", **at)]
        assert not np.allclose(probabilities(case, TEXTS[0], gone), before, atol=1e-5)
        back = [*gone, steer(direction=own, **at)]
        assert np.allclose(probabilities(case, TEXTS[0], back), before, atol=1e-5)
        unit = direction() / np.linalg.norm(direction())
        out = [steer(mode="project_out", direction=direction(), **at)]
        back = [*out, steer(direction=(own @ unit) * unit, **at)]
        assert np.allclose(probabilities(case, TEXTS[0], back), before, atol=1e-5)


def test_steered_text_is_what_a_hook_would_give(case: Case) -> None:
    import torch

    vector = torch.tensor(direction(1)) * 3
    asked = [steer(direction=direction(1), scale=3.0)]
    found = case.tools.generate(TEXTS[1], max_new_tokens=8, steering=asked)
    ids = case.ids(TEXTS[1])[0].tolist()
    written: list[int] = []
    with hooked(case.blocks[1], lambda x: x + vector), torch.no_grad():
        for _ in found.ids:
            logits = case.net(input_ids=torch.tensor([ids + written])).logits
            written.append(int(logits[0, -1].argmax()))
    assert found.ids == written
    assert found.ids != case.tools.generate(TEXTS[1], max_new_tokens=8).ids


def test_a_direction_can_be_taken_out_of_all_layers(llama: Case) -> None:
    everywhere = [steer(layer=None, mode="project_out", direction=direction())]
    each = [steer(layer=n, mode="project_out", direction=direction()) for n in (1, 2, 3)]
    found = probabilities(llama, TEXTS[0], everywhere)
    assert np.allclose(found, probabilities(llama, TEXTS[0], each), atol=1e-6)


def test_concurrent_calls_are_steered_each_in_its_own_way(case: Case) -> None:
    steering = [
        [steer(direction=direction(), scale=3.0)],
        [],
        [
            steer(layer=1, mode="project_out", direction=direction(1), position=1),
            steer(mode="ablate"),
        ],
        [steer(layer=0, direction=direction(2), position=-1), steer(direction=direction(3))],
    ]
    calls = [{"prompt": t, "steering": s} for t, s in zip(TEXTS, steering, strict=True)]
    case.tools.check_batch("next_tokens", calls, rtol=1e-3, atol=1e-5)
    more = {"temperature": 1.0, "max_new_tokens": 8}
    calls = [{**c, "seed": i, **more} for i, c in enumerate(calls)]
    case.tools.check_batch("generate", calls, atol=1e-4)


def test_a_contrast_is_the_difference_of_means(case: Case) -> None:
    up, down = ["hello world", "hello you", "hello me"], ["the dog", "the quick fox"]
    found = case.tools.contrast(up, down, 2)
    means = [
        np.mean([np.asarray(case.tools.activations(t, 2, position=-1)) for t in texts], axis=0)
        for texts in (up, down)
    ]
    assert np.allclose(found.vector, means[0] - means[1], atol=1e-4)
    assert found.norm == pytest.approx(float(np.linalg.norm(found.vector)), rel=1e-4)
    assert case.tools.contrast(up, down, 0, position=0).accuracy == 1.0


def test_a_contrast_of_matched_pairs_is_judged_on_pairs_left_out(llama: Case) -> None:
    function = llama.tools.module.contrast.__globals__["_left_out"]
    random = np.random.default_rng(0)
    topics = random.normal(size=(24, 16)) * 10
    step = random.normal(size=16)

    def score(up: Any, down: Any) -> float:
        import torch

        return function(torch.tensor(up), torch.tensor(down))

    # Pairs that differ in one step, and in topic much more than that: unseen pairs are all ordered.
    assert all((topics[i] + step - topics[i]) @ step > 0 for i in range(24))
    assert score(topics + step, topics) == 1.0
    # Without a difference, the order is a matter of chance, matched or not, also with 20 of 24.
    for count in (24, 20):
        values = [
            score(random.normal(size=(24, 16)), random.normal(size=(count, 16))) for _ in range(200)
        ]
        assert np.mean(values) == pytest.approx(0.5, abs=0.04)
    # As computed the long way, for groups of different size.
    up, down = random.normal(size=(7, 16)) + step, random.normal(size=(5, 16))
    right = [
        (up[i] - down[j]) @ (np.delete(up, i, 0).mean(0) - np.delete(down, j, 0).mean(0)) > 0
        for i in range(7)
        for j in range(5)
    ]
    assert score(up, down) == pytest.approx(np.mean(right))


def test_patching_a_prompt_with_itself_changes_nothing(case: Case) -> None:
    for stream in ("residual", "attention", "mlp"):
        found = case.tools.patch(TEXTS[1], TEXTS[1], " dog", wrong=" fox", stream=stream)
        assert found.clean == pytest.approx(found.corrupted, abs=1e-5)
        assert np.allclose(found.patched, found.clean, atol=1e-4)


def test_patching_where_prompts_differ_gives_the_clean_answer(case: Case) -> None:
    clean = case.ids(TEXTS[1])[0].tolist()
    corrupted = [*clean[:2], 200, *clean[3:]]
    found = case.tools.patch(clean, corrupted, " dog")
    logits = case.run(TEXTS[1]).logits[0, -1].log_softmax(-1)
    answer = case.tokenizer(" dog", add_special_tokens=False)["input_ids"][0]
    assert found.clean == pytest.approx(float(logits[answer]), abs=1e-4)
    assert found.layers == [0, 1, 2, 3]
    assert found.patched.shape == (4, len(clean))
    assert abs(found.clean - found.corrupted) > 1e-3
    # The embedding of the one token that differs, or the end of the whole computation.
    assert found.patched[0, 2] == pytest.approx(found.clean, abs=1e-4)
    assert found.patched[3, -1] == pytest.approx(found.clean, abs=1e-4)
    assert found.patched[0, 0] == pytest.approx(found.corrupted, abs=1e-4)
    part = case.tools.patch(clean, corrupted, " dog", layers=[0], positions=[2, -1])
    assert part.patched[0].tolist() == pytest.approx(found.patched[0, [2, -1]].tolist(), abs=1e-4)


def test_integrated_gradients_add_up(case: Case) -> None:
    found = case.tools.attribute(TEXTS[0], steps=64)
    whole = case.run(TEXTS[0]).logits[0, -1]
    assert found.target == case.tokenizer.decode([int(whole.argmax())])
    assert found.value == pytest.approx(float(whole.max()), abs=1e-4)
    gap = found.value - found.baseline
    assert sum(found.scores) == pytest.approx(gap, abs=0.02 * abs(gap) + 1e-3)
    assert len(found.scores) == len(found.tokens) == case.ids(TEXTS[0]).shape[1]


def test_gradient_times_input_is_the_slope_along_the_input(case: Case) -> None:
    import torch

    found = case.tools.attribute(TEXTS[0], target=" world", method="gradient_x_input")
    token = case.tokenizer(" world", add_special_tokens=False)["input_ids"][0]
    table = case.net.get_input_embeddings()
    given = table(case.ids(TEXTS[0]))
    step = 1e-3
    with torch.no_grad():
        ends = [
            float(case.net(inputs_embeds=given * (1 + s)).logits[0, -1, token])
            for s in (step, -step)
        ]
    slope = (ends[0] - ends[1]) / (2 * step)
    assert sum(found.scores) == pytest.approx(slope, abs=0.02 * abs(slope) + 0.02)


def test_occlusion_replaces_one_token_after_the_other(llama: Case) -> None:
    import torch

    found = llama.tools.attribute(TEXTS[1], target=" dog", method="occlusion")
    table = llama.net.get_input_embeddings()
    given = table(llama.ids(TEXTS[1])).detach()
    token = llama.tokenizer(" dog", add_special_tokens=False)["input_ids"][0]
    given[0, 1] = table.weight.mean(0)
    with torch.no_grad():
        without = float(llama.net(inputs_embeds=given).logits[0, -1, token])
    assert found.scores[1] == pytest.approx(found.value - without, abs=1e-4)
