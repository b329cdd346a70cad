"""The original's logs of runs. In Seer, they are records, which `seer.runs` reads."""

import sys

import seer.runs

sys.modules[__name__] = seer.runs
