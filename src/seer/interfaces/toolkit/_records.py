"""The arguments and results of the functions: plain records, which callers get unchanged."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import numpy as np

from seer.rpc import Handle

Stream = Literal[
    "residual",
    "middle",
    "attention",
    "mlp",
    "queries",
    "keys",
    "values",
    "heads",
    "head_outputs",
    "mlp_inputs",
    "preactivations",
    "neurons",
    "embeddings",
    "position_embeddings",
]
"""What to read or change in a block.

`residual`: the residual stream after the block. `middle`: between attention and MLP. `attention`,
`mlp`: what this part of the block adds to the residual stream. `queries`, `keys`, `values`: of each
attention head, as its matrices compute them, before any norm and rotation. `heads`: the output of
each attention head before the output matrix. `head_outputs`: what each head writes through the
output matrix (can only be read). `mlp_inputs`: the input of the MLP, after the norm.
`preactivations`: the input of the activation function of the MLP's neurons. `neurons`: the
activations of the MLP's neurons, before the MLP's output matrix. At layer 0 only: `embeddings` of
the tokens, and `position_embeddings` where a model adds them.
"""
Layer = int | str
"""A layer: 0 is the embeddings, n the output of block n, -1 the last. Or a hook name as in
TransformerLens, such as `blocks.3.hook_resid_post` or `blocks.3.attn.hook_z`; it names the stream
too. TransformerLens counts blocks from 0."""
Array = np.ndarray[Any, np.dtype[np.float32]]
"""Numbers are returned in float32, also if the model computes in another type."""


TemplateOptions = dict[str, bool | int | float | str]
"""Options of a chat template by name, such as `{"enable_thinking": False}`."""


class Message(TypedDict):
    """One message of a conversation."""

    role: str
    content: str


@dataclass
class ModelInfo:
    """The properties of a model. `layers` is the number of blocks."""

    name: str
    architecture: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    parameters: int
    dtype: str
    max_tokens: int
    """The most tokens that one prompt may have here."""
    adapter: bool
    """Whether it is a base model with an adapter on it."""
    chat: bool
    """Whether it has a chat template."""
    base: str | None = None
    """The name of an adapter's base, if it is configured as a model too."""
    generation: dict[str, float] = field(default_factory=dict[str, float])
    """The settings that came with the checkpoint, as arguments of `generate`. They apply only if
    you pass them: `generate(prompt, **info.generation)`."""
    quantization: str | None = None
    """How the weights are quantised, if they are. Activations have the type `dtype`."""


@dataclass
class Tokens:
    """A text as the model sees it."""

    ids: list[int]
    tokens: list[str]


@dataclass
class Generation:
    """What a model wrote."""

    text: str
    ids: list[int]
    logprobs: list[float]
    """The log-probability of each token under the model's own distribution (temperature 1)."""
    finish: Literal["stop", "length"]
    """`stop`: an end token or a stop text came; `length`: `max_new_tokens` were written."""


@dataclass
class TokenScore:
    """A token and a number: a probability, or a similarity."""

    token: str
    id: int
    score: float


@dataclass
class NextTokens:
    """The distribution of the token after a prompt."""

    top: list[TokenScore]
    """The likeliest tokens with their probabilities, likeliest first."""
    among: list[TokenScore]
    """The requested tokens (the first token of each text), with their probabilities."""
    entropy: float
    """In nats."""


@dataclass
class Steering:
    """A change of a model's activations while it runs.

    `add`: add `scale` times `direction`. `project_out`: remove the component along `direction`.
    `ablate`: replace the activation by zeros (`direction` is not used).
    """

    layer: Layer | None = None
    """Which block (1 is the first, 0 the embeddings) or hook name; None for all blocks."""
    direction: Array | None = None
    """As many numbers as the stream has per token. For one head: as many as the head has. For one
    neuron: one number, 1 by default."""
    mode: Literal["add", "project_out", "ablate"] = "add"
    scale: float = 1.0
    stream: Stream = "residual"
    position: int | None = None
    """Which token of the prompt (negative counts from its end); None for all tokens, including
    those that the model writes."""
    unit: int | None = None
    """Which head or neuron, from 0; None for all of them."""


@dataclass
class Direction:
    """A direction between two kinds of prompts: mean of the positive minus mean of the negative."""

    vector: Array
    norm: float
    accuracy: float
    """The share of pairs, one prompt of each kind, that a direction computed without them puts in
    the right order. Half is chance."""
    nulls: Array | None = None
    """Directions computed in the same way after random divisions of the prompts, one per row."""


@dataclass
class LensRow:
    """What the model would say next if it stopped after `layer` (0: the embeddings)."""

    layer: int
    top: list[TokenScore]
    entropy: float


@dataclass
class FittedLens:
    """A tuned lens: an affine map per layer to the last layer."""

    lens: Handle
    """For `logit_lens(..., lens=...)`."""
    plain: list[float]
    """Per layer: mean KL from the model's distribution on held-out tokens, without the maps."""
    tuned: list[float]
    """Per layer: the same mean KL, with the fitted maps."""


@dataclass
class Attribution:
    """How much each token of the prompt counts for the logit of one next token."""

    tokens: list[str]
    scores: list[float]
    target: str
    value: float
    """The target's logit for the prompt."""
    baseline: float
    """The target's logit with every token replaced by the mean embedding. Integrated gradients add
    up to `value - baseline`, except in mixtures of experts, where the logit jumps between
    experts."""


@dataclass
class Patching:
    """The effect on the answer of patching clean activations into a corrupted run."""

    clean: float
    """Log-probability of the answer (minus that of `wrong`, if given) in the clean run."""
    corrupted: float
    """The same in the corrupted run."""
    patched: Array
    """The same for each patch: layers by positions, and by units if `units` were given."""
    layers: list[int]
    positions: list[int]
    tokens: list[str]
    """The corrupted prompt's tokens at these positions."""
    units: list[int] | None = None
    """The heads or neurons that were patched one by one."""


@dataclass
class ProbeResult:
    """A linear probe and how well it does on texts that it was not trained on."""

    probe: Handle
    """For `apply_probe`."""
    accuracy: float
    """On held-out texts."""
    interval: tuple[float, float]
    """The 95 % Wilson interval of the accuracy, with all held-out texts counted as independent."""
    majority: float
    """The accuracy on them of always naming the commonest label."""
    permuted: float
    """Mean accuracy on them of probes trained in the same way on permuted labels."""
    p_value: float
    """The share of those probes, counting this one, that do at least as well as this one."""
    groups: int
    """The number of groups of texts. Texts of one group are never in both training and test."""
    train_accuracy: float
    trained_on: int
    tested_on: int
    classes: list[str]
    direction: Array
    """The probe's weights in the activation's own units (for two classes, towards the second)."""
    strength: float = 1.0
    """The inverse regularisation of `probe`, given or chosen."""
    folds: list[float] = field(default_factory=list[float])
    """The accuracy on each held-out part."""


@dataclass
class ProbeReading:
    """What a probe says about one text."""

    label: str
    probability: float


@dataclass
class NeuronScore:
    """An MLP neuron whose output weights point along a direction."""

    layer: int
    neuron: int
    score: float
    """Cosine similarity."""


@dataclass
class SaeInfo:
    """A sparse autoencoder or transcoder, and the site that it reads."""

    name: str
    layer: int
    stream: Stream
    features: int
    width: int
    architecture: str
    writes: Stream
    """The stream of its directions; for a transcoder, the stream that it predicts."""


@dataclass
class SaeList:
    """The sparse autoencoders and transcoders on a machine."""

    usable: list[SaeInfo]
    unsupported: dict[str, str]
    """The others by name, each with the reason why it cannot be used."""


@dataclass
class FeatureScore:
    """An active feature."""

    feature: int
    activation: float


@dataclass
class SaeReading:
    """What a sparse autoencoder finds at each token."""

    tokens: list[str]
    features: list[list[FeatureScore]]
    """Per token, the strongest features first."""
    active: list[int]
    """Per token, the number of all active features."""
    unexplained: float
    """The squared length of the reconstruction error, divided by that of the activations; for a
    transcoder, of the activations that it predicts."""


@dataclass
class TrainedSae:
    """A sparse autoencoder that was trained here, and how well it does on held-out texts."""

    sae: Handle
    """For `sae_features` and `sae_direction`."""
    layer: int
    stream: Stream
    features: int
    unexplained: float
    """On held-out tokens: the squared length of the reconstruction error, divided by that of the
    activations."""
    dead: float
    """The share of features that are not active at any token of the texts."""
    trained_on: int
    """The number of tokens that it was trained on."""
    tested_on: int
    config: str
    """The content of `cfg.json`, to save it."""
    weights: dict[str, Array] | None = None
    """The content of `sae_weights.safetensors`, if you asked for it."""


@dataclass
class PromptDifference:
    """How two models differ after one prompt."""

    prompt: str
    divergence: float
    """KL divergence of the first model's next-token distribution from the second's, in nats."""
    first: list[TokenScore]
    second: list[TokenScore]
    tokens: list[str] | None = None
    """With `details`: the prompt's tokens."""
    distances: Array | None = None
    """With `details`: layers by tokens, the length of the difference divided by the length of the
    second model's activation. Row 0 is the embeddings."""


@dataclass
class LayerDifference:
    """How two models' residual streams differ after one block, over all tokens."""

    layer: int
    cosine: float
    distance: float
    """Length of the difference, divided by the length of the second model's activation."""
    direction: Array | None = None
    """With `details`: the mean over all tokens of the first model's activation minus the second's.
    """
    nearest: list[TokenScore] | None = None
    """With `details`: the tokens whose unembedding is nearest to `direction`, by cosine
    similarity."""


@dataclass
class Comparison:
    """Two checkpoints side by side."""

    prompts: list[PromptDifference]
    """Most different first."""
    layers: list[LayerDifference]


@dataclass
class AdapterWeight:
    """One matrix that an adapter changes."""

    module: str
    layer: int | None
    rank: int
    norm: float
    """Frobenius norm of the change."""
    relative: float
    """`norm` divided by the norm of the matrix."""
    singular: list[float]
    """The largest singular values of the change."""


@dataclass
class ChangeDirection:
    """One direction of a matrix's change: along `input`, it adds `singular` times `output`."""

    singular: float
    """The singular value."""
    share: float
    """Its share of the change's squared norm."""
    input: Array
    """Unit vector among the matrix's inputs."""
    output: Array
    """Unit vector among the matrix's outputs."""
    reads: list[TokenScore]
    """If the inputs are the residual stream: the tokens whose embedding is nearest to `input`, by
    cosine similarity, strongest first. A negative score means the opposite direction. A norm before
    the matrix is ignored. For a table of embeddings: the tokens with the largest entries."""
    writes: list[TokenScore]
    """If the outputs go to the residual stream: the tokens whose unembedding is nearest to
    `output`. For the matrix that makes the logits: the tokens with the largest entries."""


@dataclass
class WeightChange:
    """How training changed one matrix."""

    module: str
    layer: int | None
    norm: float
    """Frobenius norm of the change."""
    relative: float
    """`norm` divided by the norm of the second model's matrix."""
    directions: list[ChangeDirection]
    """Largest singular values first."""
