"""Ports for servers that cannot be given a socket."""

import socket


def reserve_port() -> socket.socket:
    """A socket with a port of its own on loopback, for a server that is started with its number.

    As long as it is open, the kernel gives the port to nobody else who asks for any port. A server
    that sets `SO_REUSEADDR` can still listen there, because this socket does not.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
