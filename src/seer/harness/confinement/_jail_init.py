"""The first process in a vendor's jail: starts the forwarder, then becomes the agent.

`python -I -S init.py SOCKET PORT PROGRAM [ARGUMENT ...]`: a child forwards the loopback port to the
controller's socket, and this process becomes the program. When the program ends, the child ends
too, because the jail ends with its first process. Standard library only.
"""

import importlib
import os
import socket
import sys


def main() -> None:
    """Start the forwarder, and run the program."""
    target, port, *command = sys.argv[1:]
    # The forwarder of sandboxes; a copy of it is in this folder.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    forward = importlib.import_module("forward")
    listener = socket.socket()
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(128)
    if os.fork() == 0:
        os.close(0)
        os.close(1)
        forward.Forwarder(listener, target).run()
    listener.close()
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
