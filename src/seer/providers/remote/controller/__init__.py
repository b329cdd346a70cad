"""Machines on other hosts, as the controller sees them."""
