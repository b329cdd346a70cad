"""`interp_infra.harness` is `seer.harness`: one module under two names."""

import sys

import seer.harness

sys.modules[__name__] = seer.harness
