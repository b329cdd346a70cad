# interface.py - completely self-contained

from transformers import AutoModel, AutoTokenizer
import torch

# Setup: Load models explicitly
model = AutoModel.from_pretrained("/models/google--gemma-2-9b", device_map="auto")
tokenizer = AutoTokenizer.from_pretrained("/models/google--gemma-2-9b")

# State: Module-level variables work
cache = {}

# Interface: Mark functions to expose
@expose  # <-- Only thing injected
def get_activations(prompt: str, layer: int) -> dict:
    """Extract activations at a specific layer."""
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)

    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)

    activations = outputs.hidden_states[layer].mean(dim=0)

    return {
        "activations": activations.tolist(),
        "shape": list(activations.shape),
        "layer": layer
    }

@expose
def list_cache() -> dict:
    """List cached items."""
    return {"cache": list(cache.keys())}

# Private helpers (not exposed)
def _internal_helper():
    pass
