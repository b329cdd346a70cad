"""Git repositories: accepted addresses, mirrors and checkouts."""
