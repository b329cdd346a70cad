"""Starts a vendor's agent as the controller instructs (standard library only).

An SDK starts this script instead of the vendor's program. It asks the controller, over the socket
in its folder, what to run, and becomes that program. So the program gets its own environment
instead of the controller's, can run in a jail without the SDK's knowledge, and no key is in a file.
"""

import array
import fcntl
import json
import os
import socket
import sys


def main() -> None:
    """Replace this process with the program that the controller names."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    server = socket.socket(socket.AF_UNIX)
    os.chdir(folder)  # the path may be too long for a socket's address
    server.connect("server")
    names = [name for name in os.environ if name.startswith("CLAUDE_AGENT_SDK")]
    ask = {"arguments": sys.argv[1:], "env": {name: os.environ[name] for name in names}}
    server.sendall(json.dumps(ask).encode() + b"\n")
    answer, received = _receive(server)
    server.close()
    plan = json.loads(answer)
    _place(received, plan["fds"])
    os.chdir(plan["cwd"])
    os.execve(plan["argv"][0], plan["argv"], plan["env"])


def _receive(server: socket.socket) -> "tuple[bytes, list[int]]":
    fds = array.array("i")
    data = b""
    while not data.endswith(b"\n"):
        part, extra, _, _ = server.recvmsg(1 << 16, socket.CMSG_SPACE(64 * fds.itemsize))
        if not part:
            sys.exit("the controller closed the connection")
        data += part
        for _, _, payload in extra:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)


def _place(received: "list[int]", wanted: "list[int]") -> None:
    """Give each descriptor the number that the command line uses for it."""
    above = max([*wanted, *received, 2]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(moved, wanted):  # noqa: B905 (equal by construction)
        os.dup2(fd, number, inheritable=True)
        os.close(fd)


if __name__ == "__main__":
    main()
