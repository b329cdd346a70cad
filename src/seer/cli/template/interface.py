"""What the agent may do with the model: only functions with @expose can be reached."""

import torch
from seer.rpc import expose, get_model_path, list_configured_models
from transformers import AutoModelForCausalLM, AutoTokenizer

_path = get_model_path(list_configured_models()[0])
_tokenizer = AutoTokenizer.from_pretrained(_path)
_model = AutoModelForCausalLM.from_pretrained(_path, dtype=torch.float32).eval()


@expose
def next_words(text: str, k: int = 5) -> dict[str, float]:
    """The k most likely next tokens after a text, with their probabilities."""
    probabilities = _probabilities(text)
    best = probabilities.topk(min(max(k, 1), 50))
    return {
        _tokenizer.decode(token): float(value)
        for value, token in zip(best.values, best.indices.tolist(), strict=True)
    }


@expose
def compare(text: str, words: list[str]) -> dict[str, float]:
    """How likely each of the words is to come next, by its first token."""
    probabilities = _probabilities(text)
    first = {word: _tokenizer.encode(" " + word, add_special_tokens=False)[0] for word in words}
    return {word: float(probabilities[token]) for word, token in first.items()}


def _probabilities(text: str) -> torch.Tensor:
    inputs = _tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = _model(**inputs).logits[0, -1]
    return logits.softmax(dim=-1)
