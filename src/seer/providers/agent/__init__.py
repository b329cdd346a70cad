"""The programs beside and inside a machine: the keeper on the host, the steward in the jail.

These files run where Seer is not installed, and every machine starts two processes from them. So
they import only each other and standard-library modules that load quickly: not asyncio, not typing,
and no other part of Seer.
"""
