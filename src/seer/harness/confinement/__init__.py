"""Where a vendor's agent process runs: its folder, its environment, its only network."""
