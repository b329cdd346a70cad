"""Confines a vendor's agent process: its folder, its environment, its only network connection."""
