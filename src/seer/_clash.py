"""Another project on the package index is called `seer`, and installs a module `seer` too.

Installed after Seer it replaces `seer/__init__.py`. Importing this module fails where it has.
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
