"""Shipped contract suites and doubles: what every provider, session and agent must do."""

__all__: list[str] = []
