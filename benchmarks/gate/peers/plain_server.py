"""The plain design: one POST handler over a table of functions, JSON in and out."""

from __future__ import annotations

import json
import sys
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.gate import _work

_FUNCTIONS = {
    "small": _work.small,
    "floats": _work.floats,
    "take": _work.take,
    "fail": _work.fail,
}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, reply = 200, {"result": _FUNCTIONS[self.path[1:]](**request)}
        except Exception as error:
            status, reply = 500, {"error": str(error), "traceback": traceback.format_exc()}
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # the default of 5 loses connections at 64 clients


def main(address: str) -> None:
    """Serve forever; write the port to the file `address`."""
    server = _Server(("127.0.0.1", 0), _Handler)
    partial = Path(address + ".part")
    partial.write_text(str(server.server_port))
    partial.rename(address)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
