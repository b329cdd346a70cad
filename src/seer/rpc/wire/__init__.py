"""The bytes of the gate's protocol: HTTP heads, buffers and shared memory, but not values."""
