"""A small internet in one network namespace: web servers, an echo, a name server. For the tests.

`internet.py PUBLIC PRIVATE...` serves HTTP on port 80 of every address (answering with its address,
the Host header and the path), an echo on port 7 of PUBLIC, and a name server on port 53 of PUBLIC
that answers `rebind.test` with PUBLIC once and with the first PRIVATE ever after. What it is asked
it prints.
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
    """Says who it is and what it was asked."""

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


def names(public: str, private: str) -> None:
    """Answer A queries; every other kind has no answer."""
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
        records = b""
        if name == "rebind.test" and kind == 1:
            address = public if asked == 0 else private
            asked += 1
            log(f"name {name} {address}")
            records = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x00\x00\x04" + socket.inet_aton(
                address
            )
        counts = b"\x00\x01" + (b"\x00\x01" if records else b"\x00\x00") + b"\x00\x00\x00\x00"
        server.sendto(query[:2] + b"\x81\x80" + counts + question + records, peer)


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
