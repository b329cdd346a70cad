"""An interface in several copies: what `replicas=2` needs beside the parts of any gate.

Three kinds of process share it. The supervisor starts, watches and replaces copies
(`_supervision`). The front (`_front`) has the callers' sockets and finds a copy for each call
(`_dispatch`). A copy (`_copy`) is an interface process whose only client is the front.
Where an interface runs once, nothing of this is imported.
"""
