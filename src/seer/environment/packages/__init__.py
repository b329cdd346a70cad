"""Package environments: resolved and built in jails, then mounted read-only."""
