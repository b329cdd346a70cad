"""A Jupyter server for one notebook session: a process of its own on the controller's host.

It runs outside of the kernel's jail, so that the agent's code can neither read its token nor
speak to it. Its modules are run by `python -m`; nothing of Seer imports them.
"""
