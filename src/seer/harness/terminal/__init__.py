"""A person at the terminal: the chat, and what is shown of a run."""
