"""Another spelling of `seer`: every submodule here *is* the one of the same name there."""
