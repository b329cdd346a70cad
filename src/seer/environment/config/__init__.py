"""The configuration of sandboxes: frozen dataclasses and their checks."""
