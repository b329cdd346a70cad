"""Notebook sessions: a real notebook, and the Jupyter server that shows it."""
