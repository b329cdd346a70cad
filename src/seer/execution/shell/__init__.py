"""CLI sessions: shell commands, background jobs, interactive programs."""
