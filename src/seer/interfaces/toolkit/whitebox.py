"""Tools for looking into a language model while it runs.

Prompts are text or lists of token ids. Layers count positions in the residual stream: 0 is the
embeddings, n the output of block n, -1 the last. A hook name of TransformerLens may stand for a
layer. Token positions are indices; negative ones count from the end. `models()` lists the models;
functions use the first one by default. The same arguments give the same result.
"""

from seer.rpc import expose

from ._activations import activations, hold_activations
from ._attention import attention
from ._attribution import attribute
from ._compare import compare
from ._features import sae_direction, sae_features, saes
from ._generate import chat, generate, sample, writing
from ._lens import fit_lens, logit_lens
from ._neighbours import nearest_neurons, nearest_tokens
from ._patching import patch
from ._probes import apply_probe, train_probe
from ._registry import load_models, models
from ._steering import contrast
from ._tokens import chat_prompt, next_tokens, tokenize
from ._train_sae import train_sae
from ._weights import adapter_norms, diff_weights

load_models()

options = writing()
# A batch waits for callers that have called before. Without other callers it runs at once.
for function in (generate, chat):
    expose(batch=64, batch_wait=0.02, **options)(function)
for function in (activations, next_tokens, logit_lens, attention, sae_features):
    expose(batch=64, batch_wait=0.02, timeout=120, idempotent=True, stateful=False)(function)
for function in (models, tokenize, chat_prompt, saes, sae_direction, adapter_norms):
    expose(timeout=120, idempotent=True, stateful=False)(function)
for function in (
    attribute,
    patch,
    contrast,
    compare,
    diff_weights,
    nearest_tokens,
    nearest_neurons,
):
    expose(timeout=600, idempotent=True, stateful=False)(function)
expose(**options)(sample)
# These return or take handles, which exist in only one copy of the interface.
expose(batch=64, batch_wait=0.02, timeout=120)(hold_activations)
for function in (fit_lens, train_probe, apply_probe, train_sae):
    expose(timeout=600)(function)
