"""Serve recorded calls again, without an interface, a model or a GPU."""
