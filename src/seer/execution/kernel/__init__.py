"""Python sessions: one IPython kernel in a machine."""
