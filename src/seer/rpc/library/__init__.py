"""What is generated from a schema: the importable library, its stubs, prompt docs, JSON Schemas."""
