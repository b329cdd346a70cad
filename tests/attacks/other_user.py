"""What another user of the machine can do to Seer's files, sockets and servers. A script.

Started as that user, with JSON on standard input: folders and known paths in them, process ids,
servers and their tokens. Prints a line for everything that succeeded.
"""

import contextlib
import json
import os
import socket
import stat
import sys
import urllib.error
import urllib.request
from typing import Any


def tell(text: str) -> None:
    """One success."""
    sys.stdout.write(text + "\n")


def try_path(path: str, kind: str) -> None:
    """Open, list, connect to or write the file at a path."""
    try:
        if kind == "socket":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
            tell(f"connect {path}")
        elif kind == "folder":
            os.listdir(path)  # noqa: PTH208
            tell(f"list {path}")
        else:
            with open(path, "rb") as file:  # noqa: PTH123
                file.read(1)
            tell(f"read {path}")
    except OSError:
        pass
    try:
        if kind == "folder":
            with open(f"{path}/planted", "xb"):  # noqa: PTH123
                tell(f"create in {path}")
        elif kind == "file":
            with open(path, "ab"):  # noqa: PTH123
                tell(f"write {path}")
    except OSError:
        pass


def try_process(pid: int, tokens: list[str]) -> None:
    """Try to read the memory and files of a process."""
    for name in ("environ", "mem", "fd", "cwd", "root", "maps"):
        path = f"/proc/{pid}/{name}"
        try:
            if name in ("fd", "cwd", "root"):
                os.listdir(path)  # noqa: PTH208
            else:
                with open(path, "rb") as file:  # noqa: PTH123
                    file.read(1)
            tell(f"{name} of a process")
        except OSError:
            pass
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            arguments = file.read()
    except OSError:
        return
    for token in tokens:
        if token.encode() in arguments:
            tell("a token in a process's arguments")


def try_server(url: str) -> None:
    """Ask a server without its token."""
    for method in ("GET", "POST"):
        request = urllib.request.Request(url, data=b"{}" if method == "POST" else None)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                tell(f"{method} {url} {answer.status}")
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass


def main() -> None:
    """Try all."""
    given: dict[str, Any] = json.load(sys.stdin)
    for path, kind in given["paths"]:
        try_path(path, kind)
    for pid in given["pids"]:
        try_process(pid, given["tokens"])
    for url in given["servers"]:
        try_server(url)
    with open("/proc/net/unix") as file:  # noqa: PTH123
        for line in file:
            name = line.split()[-1]
            if name.startswith("@") and "seer" in name:
                tell(f"abstract socket {name}")
    tell("tried")


def kinds_below(folder: str) -> "list[tuple[str, str]]":
    """Every path below a folder, and its kind; for a user who may see them."""
    found = [(folder, "folder")]
    for parent, folders, files in os.walk(folder):
        found += [(os.path.join(parent, name), "folder") for name in folders]  # noqa: PTH118
        for name in files:
            path = os.path.join(parent, name)  # noqa: PTH118
            with contextlib.suppress(FileNotFoundError):  # running programs remove files
                mode = os.lstat(path).st_mode
                found.append((path, "socket" if stat.S_ISSOCK(mode) else "file"))
    return found


if __name__ == "__main__":
    main()
