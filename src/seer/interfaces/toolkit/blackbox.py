"""Tools for a language model, from outside: what it writes, and how likely each token is.

Prompts are text or lists of token ids. `models()` lists the models; functions use the first unless
told otherwise. The same arguments give the same result.
"""

from seer.rpc import expose

from ._generate import calls_join, chat, generate, sample
from ._registry import load_models, models
from ._tokens import chat_prompt, next_tokens, tokenize

load_models()

# With an engine, each call goes to it as it comes; without one, calls are collected into batches.
together = 64 if calls_join() else None
for function in (models, tokenize, chat_prompt):
    expose(idempotent=True, stateful=False)(function)
expose(max_concurrency=together, timeout=600, idempotent=True, stateful=False)(sample)
for function in (generate, chat):
    expose(
        batch=64,
        batch_wait=0.02,
        max_concurrency=together,
        timeout=600,
        idempotent=True,
        stateful=False,
    )(function)
expose(batch=64, batch_wait=0.02, timeout=120, idempotent=True, stateful=False)(next_tokens)
