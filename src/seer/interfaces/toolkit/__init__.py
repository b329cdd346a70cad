"""The ready-made interface files and their modules.

`whitebox.py` and `blackbox.py` only choose which functions are exposed, and how. The other modules
implement the functions, one topic per module. All of them run in the process with the model, where
only `seer.rpc` and `seer.errors` exist of Seer. They need torch and transformers; some functions
also need nnsight or scikit-learn.
"""
