"""Values and hints: how a value travels, and how it is converted to the type that a hint names."""
