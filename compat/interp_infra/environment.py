"""`interp_infra.environment` is `seer.environment`: one module under two names."""

import sys

import seer.environment

sys.modules[__name__] = seer.environment
