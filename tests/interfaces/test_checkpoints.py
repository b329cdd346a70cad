"""Two checkpoints, adapters, and the limits of calls."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer import interfaces
from seer.errors import CallLimitError, ModelInputError, ServeError
from seer.testing import load_interface
from tests.interfaces.conftest import TEXTS, Case, make, make_adapter

pytestmark = pytest.mark.full


def test_a_model_does_not_differ_from_itself(llama: Case) -> None:
    found = llama.tools.compare(list(TEXTS), "tiny", "tiny")
    assert all(one.divergence == pytest.approx(0, abs=1e-6) for one in found.prompts)
    assert all(one.cosine == pytest.approx(1, abs=1e-5) for one in found.layers)
    with pytest.raises(ModelInputError, match="has no adapter"):
        llama.tools.compare(list(TEXTS))


def test_two_checkpoints_differ_by_what_their_outputs_say(tmp_path: Path, llama: Case) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    other = make(tmp_path / "other", "llama", seed=1)
    tools: Any = load_interface(
        interfaces.whitebox, models={"one": str(llama.folder), "two": str(other)}
    )
    assert [model.name for model in tools.models()] == ["one", "two"]
    found = tools.compare(list(TEXTS), "one", "two")
    auto: Any = AutoModelForCausalLM
    net = auto.from_pretrained(other).eval()
    expected: dict[str, float] = {}
    distances: list[Any] = []
    for text in TEXTS:
        with torch.no_grad():
            b = net(input_ids=llama.ids(text), output_hidden_states=True)
        a = llama.run(text)
        p, q = (x.logits[0, -1].log_softmax(-1) for x in (a, b))
        expected[text] = float((p.exp() * (p - q)).sum())
        left, right = a.hidden_states[1][0], b.hidden_states[1][0]
        distances += ((left - right).norm(dim=-1) / right.norm(dim=-1)).tolist()
    assert {one.prompt: one.divergence for one in found.prompts} == pytest.approx(
        expected, rel=1e-3
    )
    order = [one.divergence for one in found.prompts]
    assert order == sorted(order, reverse=True)
    assert found.layers[1].distance == pytest.approx(float(np.mean(distances)), rel=1e-3)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2", "gemma2"])
def test_adapters_load_on_their_base_and_can_be_told_from_it(
    cases: Callable[[str], Case], tmp_path: Path, architecture: str
) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    case = cases(architecture)
    folder = make_adapter(case.folder, tmp_path / "organism-of-interest")
    tools: Any = load_interface(
        interfaces.whitebox, models={"of-interest": str(folder)}, hidden={"of-interest": "model_0"}
    )
    (info,) = tools.models()
    assert (info.name, info.adapter) == ("model_0", True)
    library: Any = peft
    auto: Any = AutoModelForCausalLM
    net = library.PeftModel.from_pretrained(auto.from_pretrained(case.folder), folder).eval()
    with torch.no_grad():
        output = net(input_ids=case.ids(TEXTS[0]), output_hidden_states=True)
    states = output.hidden_states
    assert np.allclose(np.asarray(tools.activations(TEXTS[0], 2)), states[2][0], atol=2e-5)
    greedy = tools.generate(TEXTS[0], max_new_tokens=4)
    assert greedy.ids[0] == int(output.logits[0, -1].argmax())
    found = tools.compare(list(TEXTS))
    assert min(one.divergence for one in found.prompts) > 1e-4
    model = tools.module.models.__globals__["find"](None)
    assert not any(p.requires_grad for p in model.net.parameters())
    same = tools.patch(TEXTS[1], TEXTS[1], " dog")
    assert np.allclose(same.patched, same.clean, atol=1e-4)
    norms = tools.adapter_norms()
    deltas = {
        name.removeprefix("base_model.model."): module.get_delta_weight("default")
        for name, module in net.named_modules()
        if hasattr(module, "lora_A")
    }
    assert {one.module: one.norm for one in norms} == pytest.approx(
        {name: float(delta.norm()) for name, delta in deltas.items()}, rel=1e-4
    )
    assert {one.layer for one in norms} == {1, 2, 3}
    assert all(one.rank == 4 and len(one.singular) == 4 for one in norms)
    mlp = "c_proj" if architecture == "gpt2" else "down_proj"
    decoder = net.base_model.model.get_decoder()
    block = (decoder.h if architecture == "gpt2" else decoder.layers)[0]
    module = getattr(block.mlp, mlp)
    weight = module.get_base_layer().weight + module.get_delta_weight("default")
    vector = weight[3] if architecture == "gpt2" else weight[:, 3]
    (nearest,) = tools.nearest_neurons(vector.detach().numpy(), k=1)
    assert (nearest.layer, nearest.neuron) == (1, 3)


@pytest.mark.filterwarnings("default")
def test_an_adapter_that_learned_a_prompt_is_refused(llama: Case, tmp_path: Path) -> None:
    """What runs the model inside an adapter would miss the prompt, and answer like the base."""
    import peft
    import torch

    library: Any = peft
    settings = library.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    torch.manual_seed(1)
    net = library.get_peft_model(llama.net, settings).eval()
    with torch.no_grad():
        ids = llama.ids(TEXTS[0])
        assert float((net(ids).logits[0, -1] - llama.net(ids).logits[0, -1]).abs().max()) > 1e-3
    net.peft_config["default"].base_model_name_or_path = str(llama.folder)
    net.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ServeError, match=r"the adapter learned a prompt \(prompt_tuning\)"):
        load_interface(interfaces.whitebox, models={"tuned": str(tmp_path / "adapter")})


LONG = [5] * 300
CALLS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("generate", {"prompt": LONG}, CallLimitError, "at most 192 fit with 64 new ones"),
    ("generate", {"prompt": "hi", "max_new_tokens": 5000}, CallLimitError, "one call may ask for"),
    ("generate", {"prompt": ""}, ModelInputError, "has no tokens"),
    ("generate", {"prompt": [9999]}, ModelInputError, "from 0 to 399"),
    ("generate", {"prompt": "a\ud800"}, ModelInputError, "a lone surrogate"),
    ("next_tokens", {"prompt": "a", "among": ("\udfff",)}, ModelInputError, "a lone surrogate"),
    ("generate", {"prompt": "hi", "temperature": -1.0}, ModelInputError, "temperature=-1.0"),
    ("generate", {"prompt": "hi", "top_p": 0.0}, ModelInputError, "top_p=0.0"),
    ("generate", {"prompt": "hi", "seed": -1}, ModelInputError, "seed=-1"),
    ("generate", {"prompt": "hi", "model": "other"}, ModelInputError, "there are 'tiny'"),
    ("sample", {"prompt": "hi", "count": 1000}, CallLimitError, "count=1000"),
    ("next_tokens", {"prompt": "hi", "k": 0}, ModelInputError, "k=0: must be at least 1"),
    ("next_tokens", {"prompt": "hi", "k": 500}, CallLimitError, "k=500"),
    ("activations", {"prompt": "hi", "layer": 4}, ModelInputError, "has layers 0 to 3"),
    ("activations", {"prompt": "hi", "layer": 1, "position": 9}, ModelInputError, "position=9"),
    ("activations", {"prompt": "hi", "layer": 0, "stream": "mlp"}, ModelInputError, "1 to 3"),
    ("attention", {"prompt": "hi", "layer": 0}, ModelInputError, "has layers 1 to 3"),
    ("attention", {"prompt": "hi", "layer": 1, "head": 9}, ModelInputError, "heads 0 to 3"),
    ("attribute", {"prompt": "hi", "steps": 10_000}, CallLimitError, "steps=10000"),
    ("attribute", {"prompt": "hi", "target": ""}, ModelInputError, "has no tokens"),
    (
        "patch",
        {"clean": "hello you", "corrupted": "hi", "answer": "a"},
        ModelInputError,
        "needs equal numbers",
    ),
    ("contrast", {"positive": ["a"], "negative": ["b"], "layer": 1}, ModelInputError, "at least 2"),
    ("contrast", {"positive": ["a"] * 2000, "negative": ["b"], "layer": 1}, CallLimitError, "2000"),
    ("train_probe", {"texts": ["a"] * 4, "labels": ["x"] * 4, "layer": 1}, ModelInputError, "2 to"),
    ("train_probe", {"texts": ["a"] * 4, "labels": ["x"], "layer": 1}, ModelInputError, "1 labels"),
    ("nearest_tokens", {"vector": np.ones(5, np.float32)}, ModelInputError, "it needs 32"),
    ("nearest_tokens", {"vector": np.zeros(32, np.float32)}, ModelInputError, "no direction"),
    ("nearest_tokens", {"vector": np.full(32, np.nan, np.float32)}, ModelInputError, "not finite"),
    ("adapter_norms", {}, ModelInputError, "has no adapter"),
    ("fit_lens", {"texts": ["a"]}, ModelInputError, "at least 4"),
]


@pytest.mark.parametrize(("name", "arguments", "kind", "words"), CALLS)
def test_calls_that_ask_for_too_much_or_for_what_is_not_there_say_so(
    llama: Case, name: str, arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        getattr(llama.tools, name)(**arguments)
    assert words in str(caught.value)


def test_a_call_that_cannot_be_answered_does_not_spoil_its_batch(llama: Case) -> None:
    module = llama.tools.module
    every = {"position": [None, None], "unit": [None, None]}
    good, bad = module.activations(["hello", "hello"], [1, 99], **every)
    assert np.allclose(good, np.asarray(llama.tools.activations("hello", 1)), atol=1e-5)
    assert isinstance(bad, ModelInputError)
    bad, good = module.generate([[9999], "hello"], seed=[0, 0], steering=[[], []])
    assert isinstance(bad, ModelInputError)
    assert good.ids == llama.tools.generate("hello").ids


def test_large_batches_run_in_parts_of_bounded_size(llama: Case) -> None:
    split = llama.tools.module.activations.__globals__["run_each"].__globals__["split"]
    groups = list(split([3, 9, 1, 7, 7, 20], lambda n: n, 14))
    assert groups == [[20], [9], [7, 7], [3, 1]]


def test_wrong_handles_are_refused(llama: Case) -> None:
    held = llama.tools.hold_activations("hello", 1)
    with pytest.raises(ModelInputError, match="train_probe"):
        llama.tools.apply_probe(held, ["hello"])
    with pytest.raises(ModelInputError, match="fit_lens"):
        llama.tools.logit_lens("hello", lens=held)


def test_an_interface_without_a_model_cannot_be_served() -> None:
    with pytest.raises(ServeError, match="no model is configured"):
        load_interface(interfaces.whitebox)


def test_blackbox_has_what_a_model_writes_and_nothing_more(llama: Case) -> None:
    tools: Any = load_interface(interfaces.blackbox, models={"tiny": str(llama.folder)})
    assert tools.generate(TEXTS[0]).ids == llama.tools.generate(TEXTS[0]).ids
    with pytest.raises(AttributeError, match="not exposed"):
        tools.activations(TEXTS[0], 1)


def test_a_changed_copy_exposes_what_it_says(llama: Case, tmp_path: Path) -> None:
    file = interfaces.copy(interfaces.blackbox, tmp_path / "mine")
    file.write_text(file.read_text().replace("(generate, chat)", "(generate,)"))
    tools: Any = load_interface(file, models={"tiny": str(llama.folder)})
    assert tools.generate("hello").ids == llama.tools.generate("hello").ids
    with pytest.raises(AttributeError, match="'chat' is not exposed"):
        tools.chat([])
