"""What a sandbox should be: frozen descriptions and their checks."""
