"""A jail's network: a proxy outside, a forwarder inside."""
