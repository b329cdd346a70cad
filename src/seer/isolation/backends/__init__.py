"""The backends that build a jail from a policy."""
