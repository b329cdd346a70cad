"""`seer` under its older name: the same objects, with the spellings of programs for the original.

`docs/original.md` lists the differences from `seer`.
"""
