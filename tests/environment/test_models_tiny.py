"""Real (tiny) models through a view: hidden or adapted, they are the same model.

It prepares models itself, because these cases need no machine.
"""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from seer.environment.config._config import ModelConfig
from seer.environment.prepare._preparer import LocalPreparer
from seer.testing._tiny_model import Architecture, make_tiny_model

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def answer(folder: Path) -> tuple[str, Any]:
    """A model's output for a prompt."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = cast("Any", AutoTokenizer.from_pretrained(folder))  # pyright: ignore[reportUnknownMemberType]
    model = cast("Any", AutoModelForCausalLM.from_pretrained(folder))  # pyright: ignore[reportUnknownMemberType]
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False
    )
    with torch.no_grad():
        return text, model(**tokenizer(text, return_tensors="pt")).logits


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2", "gemma2"])
async def test_a_hidden_model_is_the_same_model(tmp_path: Path, architecture: Architecture) -> None:
    folder = make_tiny_model(tmp_path / "quiet-otter-2", architecture=architecture)
    config = json.loads((folder / "config.json").read_text())
    config["_name_or_path"] = "acme/quiet-otter-2"
    (folder / "config.json").write_text(json.dumps(config))
    (model,) = await LocalPreparer().models([ModelConfig(str(folder), hidden=True)])
    for path in model.host_path.rglob("*"):
        assert b"otter" not in path.read_bytes() + path.name.encode()
    text, logits = answer(folder)
    hidden_text, hidden_logits = answer(model.host_path)
    assert text == hidden_text
    assert (logits == hidden_logits).all()


async def test_equal_seeds_make_equal_models(tmp_path: Path) -> None:
    first = make_tiny_model(tmp_path / "a", seed=1)
    second = make_tiny_model(tmp_path / "b", seed=1)
    third = make_tiny_model(tmp_path / "c", seed=2)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, second, third)]
    assert weights[0] == weights[1] != weights[2]


async def test_a_hidden_adapter_loads_on_its_hidden_base(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = make_tiny_model(tmp_path / "quiet-otter-2")
    model = cast("Any", AutoModelForCausalLM.from_pretrained(base))  # pyright: ignore[reportUnknownMemberType]
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapter = tmp_path / "loud-badger-9"
    peft.get_peft_model(model, lora).save_pretrained(adapter)
    root = tmp_path / "machine"
    config = ModelConfig(str(adapter), is_peft=True, base_model=str(base), hidden=True)
    (prepared,) = await LocalPreparer().models([config], models_root=str(root))
    # Stands in for the jail's mounts, which need root.
    root.mkdir()
    for mount in prepared.mounts:
        (root / mount.target.rpartition("/")[2]).symlink_to(mount.source)
        for path in mount.source.rglob("*"):
            content = path.read_bytes() + path.name.encode()
            assert b"otter" not in content
            assert b"badger" not in content
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(prepared.handle.path)
    assert loaded.peft_config["default"].r == 2
