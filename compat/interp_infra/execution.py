"""`interp_infra.execution` is `seer.execution`: one module under two names."""

import sys

import seer.execution

sys.modules[__name__] = seer.execution
