"""The names that interface files import, in the original's spelling."""

from seer.rpc import expose, get_model_path, list_configured_models

__all__ = ["expose", "get_model_path", "list_configured_models"]
