"""A small internet in one network namespace: web servers, an echo, a name server. For the tests.

`internet.py PUBLIC PRIVATE...` serves HTTP on port 80 of every address (answering with its address,
the Host header and the path), an echo on port 7 of PUBLIC, and a name server on port 53 of PUBLIC.
The name server answers `rebind.test` with PUBLIC the first time and with the first PRIVATE
afterwards, and has names with several addresses, all with a time to live of zero. It prints each
question.
"""

import http.server
import socket
import socketserver
import sys
import threading


def log(text: str) -> None:
    """Tell the test."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Web(http.server.BaseHTTPRequestHandler):
    """Answers with its own address and the request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer, with the body of the request if there is one."""
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        address = self.connection.getsockname()[0]
        log(f"web {address} {self.headers['Host']} {self.path}")
        answer = f"{address} {self.headers['Host']} {self.path} ".encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class Echo(socketserver.StreamRequestHandler):
    """Sends back what it gets."""

    def handle(self) -> None:
        """Until the other side has ended."""
        while data := self.connection.recv(65536):
            self.connection.sendall(data)


class Threaded(socketserver.ThreadingTCPServer):
    """One thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True


A, CNAME, AAAA = 1, 5, 28


def record(kind: int, data: bytes, name: bytes = b"\xc0\x0c") -> bytes:
    """One answer, with a time to live of zero."""
    head = kind.to_bytes(2, "big") + b"\x00\x01" + bytes(4)
    return name + head + len(data).to_bytes(2, "big") + data


def v4(*addresses: str) -> list[bytes]:
    """A records."""
    return [record(A, socket.inet_aton(address)) for address in addresses]


def v6(*addresses: str) -> list[bytes]:
    """AAAA records."""
    return [record(AAAA, socket.inet_pton(socket.AF_INET6, address)) for address in addresses]


def zone(public: str, private: str) -> dict[tuple[str, int], list[bytes]]:
    """The names of a hostile server, with the answer to each kind of query."""
    local = b"\x09localhost\x00"
    inside = [private, "127.0.0.1", "169.254.169.254", "0.0.0.0"]
    return {
        ("mixed.test", A): v4(*inside, public, "127.0.0.2"),
        ("many.test", A): v4(*(f"10.0.0.{n}" for n in range(1, 200))),
        ("alias.test", A): [record(CNAME, local), record(A, socket.inet_aton("127.0.0.1"), local)],
        ("mapped.test", AAAA): v6(
            "::ffff:127.0.0.1", f"::ffff:{private}", "::1", "64:ff9b::a09:909"
        ),
        ("both.test", A): v4(private),
        ("both.test", AAAA): v6("::ffff:10.9.9.9", "2002:a09:909::1", "fe80::1"),
    }


def names(public: str, private: str) -> None:
    """Answer queries as the zone says; a name that is not in it has no answer."""
    known = zone(public, private)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((public, 53))
    asked = 0
    while True:
        query, peer = server.recvfrom(4096)
        labels: list[str] = []
        offset = 12
        while query[offset]:
            length = query[offset]
            labels.append(query[offset + 1 : offset + 1 + length].decode())
            offset += length + 1
        question = query[12 : offset + 5]
        kind = int.from_bytes(query[offset + 1 : offset + 3], "big")
        name = ".".join(labels)
        records = known.get((name, kind), [])
        if records:
            log(f"name {name} {'A' if kind == A else 'AAAA'}")
        if name == "rebind.test" and kind == 1:
            address = public if asked == 0 else private
            asked += 1
            log(f"name {name} {address}")
            records = v4(address)
        counts = b"\x00\x01" + len(records).to_bytes(2, "big") + bytes(4)
        server.sendto(query[:2] + b"\x81\x80" + counts + question + b"".join(records), peer)


def main(public: str, *private: str) -> None:
    """Serve until killed."""
    for address in (public, *private):
        server = Threaded((address, 80), Web)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    echo = Threaded((public, 7), Echo)
    threading.Thread(target=echo.serve_forever, daemon=True).start()
    threading.Thread(target=names, args=(public, private[0]), daemon=True).start()
    log("ready")
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
