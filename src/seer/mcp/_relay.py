"""The program that an agent starts as its MCP server. A copy of it is beside the server's socket.

It passes its standard input and output to the process that owns the socket, and then only waits.
The server itself runs in that process, so the relay starts fast, and it relays no calls. The relay
holds no secret: the permissions of the socket's folder and the peer's user decide who can connect.
"""

import _socket
import os
import sys


def main() -> int:
    """Connect, pass the pipes, wait. Returns the exit code."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    os.chdir(here)  # a socket's address has at most 107 bytes
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        server.connect("mcp.sock")
    except OSError as error:
        sys.stderr.write(
            f"the Seer process that offered these tools has ended ({error.strerror}); "
            "open the session or serve the interface again\n"
        )
        return 1
    numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1))
    # The id of the agent's session, in which tools save files; empty if the agent has none.
    session = os.environ.get("SEER_SESSION", "").encode()[:100]
    server.sendmsg([b"1" + session], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    os.close(0)
    os.close(1)
    refusal = b""
    while True:
        data = server.recv(4096)
        if not data:
            break
        refusal += data
    if refusal:
        sys.stderr.write(refusal.decode(errors="replace") + "\n")
    return 1 if refusal else 0


if __name__ == "__main__":
    sys.exit(main())
