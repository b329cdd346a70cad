"""`src.mcps` is `seer.mcp`: one module under two names."""

import sys

import seer.mcp

sys.modules[__name__] = seer.mcp
