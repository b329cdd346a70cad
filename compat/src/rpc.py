"""`src.rpc` is `seer.rpc`: one module under two names."""

import sys

import seer.rpc

sys.modules[__name__] = seer.rpc
