"""The white-box tools in a real sandbox: shipped, jailed, hidden, and with many callers."""

# numpy is annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

# Here, before a test uses nnsight, which gives every object a method that anyio's classes refuse.
from mcp import Client, StdioServerParameters

from seer import interfaces
from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.errors import RemoteError
from seer.testing import load_interface
from tests.interfaces.conftest import TEXTS, Case, make_adapter
from tests.interfaces.test_knowledge import save_sae

pytestmark = pytest.mark.full


class Both:
    """The same hidden adapter, served in a sandbox and loaded here."""

    def __init__(self, sandbox: ScopedSandbox, here: Any) -> None:
        self.sandbox = sandbox
        self.library = sandbox.serve(interfaces.whitebox, name="tools")
        self.there: Any = self.library.connect()
        self.here: Any = here


@pytest.fixture(scope="module")
def both(cases: Callable[[str], Case], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    import torch

    root = tmp_path_factory.mktemp("served")
    base = cases("qwen2").folder
    adapter = make_adapter(base, root / "organism-of-interest")
    weights = {
        "b_enc": torch.zeros(64),
        "W_enc": torch.eye(32, 64),
        "W_dec": torch.eye(64, 32),
        "b_dec": torch.zeros(32),
    }
    hook = "blocks.0.hook_resid_post"
    save_sae(root / "saes" / "first", weights, architecture="standard", hook_name=hook)
    config = SandboxConfig(
        gpu=None,
        provider="local",
        python_packages=["torch", "transformers", "peft", "nnsight", "scikit-learn"],
        models=[ModelConfig(name=str(adapter), base_model=str(base), is_peft=True, hidden=True)],
        local_dirs=[root / "saes"],
        env={"SEER_SAES": "saes", "OMP_NUM_THREADS": "1"},
    )
    here = load_interface(interfaces.whitebox, models={"m": str(adapter)})
    with ScopedSandbox(config) as sandbox:
        yield Both(sandbox, here)


def test_a_hidden_adapter_is_studied_under_its_alias(both: Both) -> None:
    (info,) = both.there.models()
    assert (info.name, info.adapter, info.layers) == ("model_0", True, 3)
    assert info.base == "model_0_base"
    ways = [both.there.compare(["hello"], second=name).prompts[0] for name in (None, info.base)]
    assert ways[0].divergence == pytest.approx(ways[1].divergence, abs=1e-6)
    assert ways[0].divergence > 0
    with pytest.raises(ValueError) as caught:
        both.there.activations("hello", 99)
    assert isinstance(caught.value, RemoteError)
    told = [str(caught.value), both.library.docs, *map(bytes.decode, both.library.files.values())]
    assert not any("interest" in text for text in told)


def test_arrays_arrive_as_numpy_and_records_as_records(both: Both) -> None:
    found = both.there.activations(TEXTS[0], 2)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert np.allclose(found, both.here.activations(TEXTS[0], 2), atol=1e-5)
    held = both.there.hold_activations(TEXTS[0], 2)
    assert np.allclose(held.fetch(), found, atol=1e-6)
    direction = both.there.contrast(["hello", "hello you"], ["the fox", "the dog"], 2)
    steering = [{"layer": 2, "direction": direction.vector, "scale": 4.0}]
    steered = both.there.generate(TEXTS[1], steering=steering, max_new_tokens=6)
    assert steered.ids == both.here.generate(TEXTS[1], steering=steering, max_new_tokens=6).ids
    texts, labels = ["hello a", "hello b", "the a", "the b"] * 3, ["x", "x", "y", "y"] * 3
    probe = both.there.train_probe(texts, labels, 1)
    assert both.there.apply_probe(probe.probe, ["hello"])[0].label in ("x", "y")
    fitted = both.there.fit_lens(list(TEXTS) * 2)
    assert len(both.there.logit_lens(TEXTS[0], lens=fitted.lens)) == 4
    assert both.there.adapter_norms()[0].norm == pytest.approx(both.here.adapter_norms()[0].norm)
    (sae,) = both.there.saes().usable
    assert (sae.name, sae.layer) == ("first", 1)
    assert both.there.sae_features(TEXTS[0], "first", k=3).tokens


def test_many_callers_get_what_each_would_get_alone(both: Both) -> None:
    callers: list[Any] = [both.library.connect() for _ in range(6)]
    jobs = [(callers[i], TEXTS[i % 4], i) for i in range(6)]

    def write(job: tuple[Any, str, int]) -> Any:
        caller, text, seed = job
        found = caller.generate(text, seed=seed, temperature=1.0, max_new_tokens=8)
        return found.ids, caller.next_tokens(text, k=3), caller.activations(text, 1, position=-1)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(write, jobs))
    for (ids, following, vector), (_, text, seed) in zip(found, jobs, strict=True):
        alone = both.here.generate(text, seed=seed, temperature=1.0, max_new_tokens=8)
        assert ids == alone.ids
        expected = both.here.next_tokens(text, k=3)
        assert [one.id for one in following.top] == [one.id for one in expected.top]
        assert np.allclose(vector, both.here.activations(text, 1, position=-1), atol=1e-5)


def test_sites_and_autoencoders_cross_the_gate(both: Both) -> None:
    """Hook names, units, options and handles beside names, with the same results as here."""
    hook = "blocks.1.attn.hook_z"
    for options in ({}, {"unit": 1}, {"unit": 1, "position": -1}):
        found = both.there.activations(TEXTS[0], hook, **options)
        expected = both.here.activations(TEXTS[0], hook, **options)
        assert np.allclose(found, expected, atol=1e-5)
    steering = [{"mode": "ablate", "layer": hook, "unit": 1}]
    steered = both.there.next_tokens(TEXTS[0], steering=steering, k=3)
    expected = both.here.next_tokens(TEXTS[0], steering=steering, k=3)
    assert [one.id for one in steered.top] == [one.id for one in expected.top]
    messages = [{"role": "user", "content": "hello"}]
    begun = both.there.chat(messages, prefill="the", max_new_tokens=3)
    assert begun.ids == both.here.chat(messages, prefill="the", max_new_tokens=3).ids
    texts = [f"{text} {n}" for n in range(3) for text in TEXTS]
    options = {"features": 40, "k": 4, "steps": 20, "weights": True}
    trained = both.there.train_sae(texts, 2, **options)
    same = both.here.train_sae(texts, 2, **options)
    assert np.allclose(trained.weights["W_dec"], same.weights["W_dec"], atol=1e-4)
    found = both.there.sae_features(TEXTS[0], trained.sae, k=4)
    assert found.active == both.here.sae_features(TEXTS[0], same.sae, k=4).active
    direction = both.there.sae_direction(trained.sae, 3)
    assert np.allclose(np.asarray(direction), trained.weights["W_dec"][3], atol=1e-6)
    (change, *_) = both.there.diff_weights(matrices=1, directions=1, k=3)
    (own, *_) = both.here.diff_weights(matrices=1, directions=1, k=3)
    assert change.module == own.module
    assert change.directions[0].singular == pytest.approx(own.directions[0].singular, rel=1e-4)


async def test_steering_and_probes_work_as_tools_of_an_agent(both: Both) -> None:
    """Over MCP, where records are objects and handles references."""
    (entry,) = both.sandbox.present("tools", "mcp").values()
    server = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])
    async with Client(server) as client:

        async def call(name: str, **arguments: Any) -> Any:
            result: Any = await client.call_tool(name, arguments)
            assert not result.is_error, result.content
            return result.structured_content["result"]

        steering = [{"layer": 2, "direction": [3.0] * 32, "scale": 4.0}]
        steered = await call("generate", prompt=TEXTS[0], steering=steering, max_new_tokens=4)
        expected = both.here.generate(TEXTS[0], steering=steering, max_new_tokens=4)
        assert steered["ids"] == expected.ids
        assert steered["ids"] != both.here.generate(TEXTS[0], max_new_tokens=4).ids
        texts = [f"{'hello' if i % 2 else 'thank'} {word}" for i, word in enumerate("abcdefghij")]
        labels = ["greeting" if i % 2 else "thanks" for i in range(10)]
        probe = await call("train_probe", texts=texts, labels=labels, layer=1, position=0)
        readings = await call("apply_probe", probe=probe["probe"], texts=["hello", "thank"])
        assert [one["label"] for one in readings] == ["greeting", "thanks"]
