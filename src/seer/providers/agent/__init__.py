"""What runs beside and inside a machine: the keeper on the host, the steward in the jail.

These files travel to places where Seer is not installed, and every machine starts two processes
of them. So they use the standard library alone, import only each other and what is cheap to
import, and know nothing of asyncio, typing or the rest of Seer.
"""
