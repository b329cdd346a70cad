"""Real small language models for experiments that need no download from a model hub."""

from seer.organisms._base_model import base_model

__all__ = ["base_model"]
