"""What the agent of the documentation's picture may do with a model."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from seer.rpc import expose, get_model_path

path = get_model_path("google/gemma-2-9b")
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(path)
layers = model.model.layers


def _ids(text: str) -> torch.Tensor:
    return tokenizer(text, return_tensors="pt")["input_ids"]


def _tokens(ids: torch.Tensor) -> list[str]:
    return [tokenizer.decode([token]) for token in ids[0]]


@expose
def model_info() -> dict:
    """The model's shape."""
    return {"layers": len(layers), "hidden_size": model.config.hidden_size}


@expose
def next_tokens(prompt: str, count: int = 8) -> list:
    """The likeliest next tokens with their probabilities."""
    with torch.no_grad():
        chances = model(_ids(prompt)).logits[0, -1].softmax(-1).topk(count)
    return [
        [tokenizer.decode([token]), float(chance)]
        for token, chance in zip(chances.indices, chances.values, strict=True)
    ]


@expose
def attribute(prompt: str, target: str) -> dict:
    """What the target's log-probability loses when a token is blotted out, against the average.

    The last token is left out: the answer is read from there.
    """
    ids = _ids(prompt)
    embedded = model.get_input_embeddings()(ids)
    blotted = embedded.repeat(ids.shape[1] + 1, 1, 1)
    for position in range(ids.shape[1]):
        blotted[position + 1, position] = embedded.mean(1)
    with torch.no_grad():
        chances = model(inputs_embeds=blotted).logits[:, -1].log_softmax(-1)
    scores = chances[:, _ids(target)[0, 0]]
    lost = scores[0] - scores[1:-1]
    return {"tokens": _tokens(ids)[:-1], "attribution": (lost - lost.mean()).numpy()}


@expose
def logit_lens(prompt: str, target: str) -> dict:
    """The target's log-odds against the average token, by layer and position."""
    ids = _ids(prompt)
    with torch.no_grad():
        states = torch.stack(model(ids, output_hidden_states=True).hidden_states)[1:, 0]
        logits = model.lm_head(model.model.norm(states))
    lens = logits[..., _ids(target)[0, 0]] - logits.mean(-1)
    return {"tokens": _tokens(ids), "logit": lens.numpy()}


@expose
def direction(positive: list[str], negative: list[str], layer: int) -> torch.Tensor:
    """The mean difference between two sets of texts in the residual stream."""
    with torch.no_grad():

        def mean(texts: list[str]) -> torch.Tensor:
            found = [model(_ids(t), output_hidden_states=True).hidden_states[layer] for t in texts]
            return torch.stack([states[0, -1] for states in found]).mean(0)

        return mean(positive) - mean(negative)


@expose
def steer(prompt: str, vector: torch.Tensor, layer: int, strength: float) -> dict:
    """What the model writes without and with a vector added to one layer."""
    ids = _ids(prompt)

    def write() -> str:
        out = model.generate(ids, max_new_tokens=14, do_sample=False, repetition_penalty=1.3)
        return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()

    before = write()
    hook = layers[layer].register_forward_hook(
        lambda module, given, out: (
            (out[0] + strength * vector, *out[1:])
            if isinstance(out, tuple)
            else out + strength * vector
        )
    )
    try:
        return {"before": before, "after": write()}
    finally:
        hook.remove()
