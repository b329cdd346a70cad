"""The agents that can be run: one module per vendor, and the scripted, replayed and human ones."""
