"""How fast a call through the gate is, next to other ways to call a Python function elsewhere."""
