"""The bytes of the gate's protocol: HTTP heads, buffers, shared memory; without values."""
