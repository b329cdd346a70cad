"""A certificate for `localhost`, made once per process; nobody trusts it unless told to."""

import ssl
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def _files() -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "certificate.pem")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
            + ["-nodes", "-days", "30", "-subj", "/CN=localhost"]
            + ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
            + ["-keyout", str(key), "-out", str(certificate)],
            check=True,
            capture_output=True,
        )
        return key.read_text(), certificate.read_text()


def certificate() -> str:
    """The certificate, for clients that should trust it."""
    return _files()[1]


def server_context() -> ssl.SSLContext:
    """For a server that presents it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "both.pem")
        path.touch(mode=0o600)
        path.write_text("".join(_files()))
        context.load_cert_chain(path)
    return context
