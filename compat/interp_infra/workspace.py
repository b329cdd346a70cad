"""`interp_infra.workspace` is `seer.workspace`: one module under two names."""

import sys

import seer.workspace

sys.modules[__name__] = seer.workspace
