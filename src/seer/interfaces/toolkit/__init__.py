"""The ready-made interface files and the modules they are made of.

`whitebox.py` and `blackbox.py` only choose what is exposed, and how. Everything else is here once,
one kind of question per module. All of it runs next to the model, where nothing of Seer is but
`seer.rpc` and `seer.errors`; torch and transformers are needed, nnsight and scikit-learn only by
the functions that say so.
"""
