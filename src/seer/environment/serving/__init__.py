"""Interfaces that a scoped sandbox serves."""
