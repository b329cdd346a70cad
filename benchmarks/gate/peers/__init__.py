"""Servers and clients of the peers; they run in the environment of `requirements.txt`."""
