"""An older spelling of `seer`: the same names, and what programs for the original say beside them.

What differs from `seer` is listed in `docs/original.md`; everything else is seer's own object.
"""
