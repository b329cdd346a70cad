"""Measurements of Seer against peers and floors. Never shipped, never imported by the package."""
