"""The programs beside and inside a machine: the keeper on the host, the steward in the jail.

These files run in places where Seer is not installed, and every machine starts two processes of
them. So they import only each other and modules of the standard library that load quickly: not
asyncio, not typing, and no other part of Seer.
"""
