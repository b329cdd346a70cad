"""Stands as the door of a package whose real one is not shipped (see `seer.rpc._ship`)."""
