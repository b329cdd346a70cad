"""Prepare what a machine needs, on this host or on another."""
