"""Compares calls through the gate with other ways to call a Python function in another process."""
