"""Values and hints: how a value is sent, and how it is converted to the type that a hint names."""
