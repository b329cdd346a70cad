"""An interface in several copies: what `replicas=2` needs besides the parts of any gate.

Three kinds of process use it. The supervisor starts, watches and replaces copies (`_supervision`).
The front (`_front`) has the callers' sockets and chooses a copy for each call (`_dispatch`). A copy
(`_copy`) is an interface process whose only client is the front. Without copies, none of these
modules is imported.
"""
