"""Seer: give an AI agent a model to study, whole or through chosen functions only."""

__version__ = "0.1.0"
__distribution__ = "seer-interp"
