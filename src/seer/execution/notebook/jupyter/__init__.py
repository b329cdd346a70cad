"""A Jupyter server for one notebook session: a separate process on the controller's host.

It runs outside the kernel's jail, so that the agent's code can neither read its token nor connect
to it. `python -m` runs its modules; no other module of Seer imports them.
"""
