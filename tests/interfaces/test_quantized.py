"""Quantised weights, compared with plain PyTorch over the dequantised ones."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer import interfaces
from seer.errors import ModelInputError, ServeError
from seer.testing import load_interface, make_tiny_model
from tests.interfaces.conftest import TEXTS, Case

pytestmark = pytest.mark.full


def test_a_missing_library_or_an_unknown_way_is_said(
    llama: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"tiny": str(llama.folder)}
    monkeypatch.setenv("SEER_QUANTIZE", "3bit")
    with pytest.raises(ServeError, match="must be '8bit' or '4bit'"):
        load_interface(interfaces.whitebox, models=models)
    if importlib.util.find_spec("bitsandbytes") is None:
        monkeypatch.setenv("SEER_QUANTIZE", "4bit")
        with pytest.raises(ServeError, match="add 'bitsandbytes' to SandboxConfig"):
            load_interface(interfaces.whitebox, models=models)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["4bit", "8bit"])
def test_quantised_models_compute_with_their_dequantised_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    library: Any = pytest.importorskip("bitsandbytes")
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    # bitsandbytes quantises in blocks of 64 numbers.
    make_tiny_model(tmp_path / "tiny", architecture="llama", layers=2, width=64)
    monkeypatch.setenv("SEER_QUANTIZE", way)
    tools: Any = load_interface(interfaces.whitebox, models={"tiny": str(tmp_path / "tiny")})
    (info,) = tools.models()
    assert info.quantization == "bitsandbytes" and info.dtype == "float32"
    auto: Any = AutoModelForCausalLM
    config: Any = BitsAndBytesConfig
    options = {"load_in_8bit": True} if way == "8bit" else {"load_in_4bit": True}
    if way == "4bit":
        options |= {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    small = auto.from_pretrained(
        tmp_path / "tiny", quantization_config=config(**options), dtype=torch.float32
    )
    plain = auto.from_pretrained(tmp_path / "tiny").eval()
    exact = dict(plain.named_modules())
    dequantised = 0
    for name, module in small.named_modules():
        with torch.no_grad():
            if type(module).__name__ == "Linear4bit":
                state = module.weight.quant_state
                whole = library.functional.dequantize_4bit(module.weight.data, state)
            elif type(module).__name__ == "Linear8bitLt":
                whole = module.weight.data.float() * module.weight.SCB[:, None] / 127
            else:
                continue
            exact[name].weight.copy_(whole)
            dequantised += 1
    assert dequantised == 14
    ids = torch.tensor([tools.tokenize(TEXTS[0]).ids])
    with torch.no_grad():
        output = plain(input_ids=ids, output_hidden_states=True)
    # Activations are rounded too: to 8 bit, or (by the packed kernel of CPUs) to bfloat16.
    tolerance = 0.02
    found = np.asarray(tools.activations(TEXTS[0], 1))
    expected = output.hidden_states[1][0].numpy()
    assert np.linalg.norm(found - expected) < tolerance * np.linalg.norm(expected)
    heads = tools.activations(TEXTS[0], 2, stream="head_outputs")
    whole = np.asarray(tools.activations(TEXTS[0], 2, stream="attention"))
    assert np.linalg.norm(heads.sum(1) - whole) < tolerance * np.linalg.norm(whole)
    assert tools.generate(TEXTS[0], max_new_tokens=4).ids
    with pytest.raises(ModelInputError, match="are quantised"):
        tools.diff_weights("tiny", "tiny")
