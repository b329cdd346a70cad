"""Connects standard input and output to a Unix socket, for hosts where forwarding is forbidden.

It runs on the host as `pump PATH`. When one side ends, the other is closed.
"""

from __future__ import annotations

import os
import select
import socket
import sys


def main() -> None:
    """Copy both ways until either side has ended."""
    folder, name = os.path.split(sys.argv[1])
    inside = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Use the folder's descriptor, because a socket's address may have at most 107 bytes.
        peer.connect(f"/proc/self/fd/{inside}/{name}")
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(3)
    os.write(1, b"\n")
    ways = {0: (0, peer.fileno()), peer.fileno(): (peer.fileno(), 1)}
    while True:
        for fd in select.select(list(ways), [], [])[0]:
            source, target = ways[fd]
            data = memoryview(os.read(source, 256 * 1024))
            if not data:
                return
            while data:
                data = data[os.write(target, data) :]
