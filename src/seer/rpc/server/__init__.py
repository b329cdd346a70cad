"""The server side of the gate: what `python -m seer.rpc.server` runs inside a sandbox."""
