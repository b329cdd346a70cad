"""Servers and clients of the floors. They check nothing, limit nothing and record nothing."""
