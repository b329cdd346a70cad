"""Models: downloaded or found, blinded, and shown to a sandbox as a folder."""
