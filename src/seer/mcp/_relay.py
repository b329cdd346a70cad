"""The program that an agent starts as its MCP server. A copy of it is beside the door's socket.

It hands its standard input and output to the process that owns the door, and then only waits: the
server itself runs there, so starting one costs almost nothing, and calls are not relayed.
It holds no secret; who may come in is decided by the socket's folder and the peer's user.
"""

import _socket
import os
import sys


def main() -> int:
    """Connect, hand over, wait. Returns the exit code."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    os.chdir(here)  # a socket's address has at most 107 bytes
    door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        door.connect("door.sock")
    except OSError as error:
        sys.stderr.write(
            f"the Seer process that offered these tools has ended ({error.strerror}); "
            "open the session or serve the interface again\n"
        )
        return 1
    numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1))
    # The session of the agent, for what the tools save; empty where the agent has none.
    session = os.environ.get("SEER_SESSION", "").encode()[:100]
    door.sendmsg([b"1" + session], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    os.close(0)
    os.close(1)
    refusal = b""
    while True:
        data = door.recv(4096)
        if not data:
            break
        refusal += data
    if refusal:
        sys.stderr.write(refusal.decode(errors="replace") + "\n")
    return 1 if refusal else 0


if __name__ == "__main__":
    sys.exit(main())
