"""An interface as data: what `@expose` marks, loaded and described by one schema."""
