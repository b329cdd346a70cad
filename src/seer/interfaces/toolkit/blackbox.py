"""Tools for studying a language model from outside: what it writes, and how likely each token is.

Prompts are text or lists of token ids. `models()` lists the models; functions use the first one by
default. The same arguments give the same result.
"""

from seer.rpc import expose

from ._generate import chat, generate, sample, writing
from ._registry import load_models, models
from ._tokens import chat_prompt, next_tokens, tokenize

load_models()

options = writing()
for function in (models, tokenize, chat_prompt):
    expose(idempotent=True, stateful=False)(function)
expose(**options)(sample)
for function in (generate, chat):
    expose(batch=64, batch_wait=0.02, **options)(function)
expose(batch=64, batch_wait=0.02, timeout=120, idempotent=True, stateful=False)(next_tokens)
