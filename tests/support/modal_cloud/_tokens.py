"""The short-lived tokens that the cloud hands out, in the form that the SDK expects."""

import base64
import json
import secrets
import time

_LIFETIME = 3600.0


class Tokens:
    """Issues tokens and knows them again."""

    def __init__(self) -> None:
        self.url = ""
        """Where the command router is."""
        self._issued: dict[str, str] = {}

    def issue(self, subject: str) -> str:
        """A token for `subject`."""
        body = json.dumps({"exp": time.time() + _LIFETIME, "sub": subject}).encode()
        parts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b"{}", body)]
        token = ".".join([*parts, secrets.token_urlsafe(24)])
        self._issued[token] = subject
        return token

    def subject(self, token: str) -> str | None:
        """The subject for which a token was issued; None for an unknown token."""
        return self._issued.get(token)
