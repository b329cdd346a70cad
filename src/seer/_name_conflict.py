"""Detects another project that is called `seer` and also installs a module `seer`.

If that project is installed after Seer, it replaces `seer/__init__.py`. Importing this module then
raises `ImportError` with the remedy.
"""

import seer

OTHER = "seer"
"""The other project's distribution."""
REMEDY = "pip uninstall -y seer && pip install --force-reinstall --no-deps seer-interp"

if not hasattr(seer, "__distribution__"):
    raise ImportError(
        f"another project's package {OTHER!r} is installed over Seer, which is called "
        f"'seer-interp'; run: {REMEDY}"
    )
