"""RunPod's API: sends requests, and translates RunPod's errors to Seer's.

It uses plain HTTP. Seer needs only five requests, and the vendor's SDK depends on a cloud storage
client, a web framework and a second SSH client (docs/decisions/runpod-http.md).
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

import httpx

from seer.errors import (
    CapacityError,
    CredentialsError,
    HostUnreachableError,
    ProviderError,
    QuotaError,
    SeerError,
)

logger = logging.getLogger(__name__)

DEFAULT_URL = "https://api.runpod.io"
_SECONDS = 30.0
_TRIES = 4
_KEY_PAGE = "create one at console.runpod.io/user/settings and set RUNPOD_API_KEY"

ERRORS: tuple[tuple[str, Callable[[str], SeerError]], ...] = (
    ("no longer any instances", lambda words: CapacityError(f"RunPod: {words}")),
    ("no instances", lambda words: CapacityError(f"RunPod: {words}")),
    ("not enough free gpus", lambda words: CapacityError(f"RunPod: {words}")),
    ("could not find any pods with required", lambda words: CapacityError(f"RunPod: {words}")),
    (
        "balance",
        lambda words: QuotaError(f"RunPod: {words} Add funds at console.runpod.io/user/billing"),
    ),
    (
        "spend limit",
        lambda words: QuotaError(f"RunPod: {words} Raise it, or end pods (`seer ps`)"),
    ),
    (
        "limit",
        lambda words: QuotaError(f"RunPod: {words} End pods that are not needed (`seer ps`)"),
    ),
    ("unauthorized", lambda words: CredentialsError(f"RunPod: {words}; {_KEY_PAGE}")),
    ("forbidden", lambda words: CredentialsError(f"RunPod: {words}; {_KEY_PAGE}")),
)
"""Seer's error for words in RunPod's messages, which lack codes. The first match counts."""


def has_key() -> bool:
    """Whether a key is configured."""
    return bool(os.environ.get("RUNPOD_API_KEY", "").strip())


def translate(words: str) -> SeerError:
    """Seer's error for a RunPod message."""
    lowered = words.lower()
    for part, make in ERRORS:
        if part in lowered:
            return make(words)
    return ProviderError(f"RunPod refuses the request: {words}")


async def request(query: str, variables: Mapping[str, object], *, repeat: bool) -> dict[str, Any]:
    """Send one GraphQL document, and return its data.

    Args:
        query: The document.
        variables: Its variables.
        repeat: Whether it may be sent again if there was no answer.

    Raises:
        ProviderError: With RunPod's message.
        HostUnreachableError: RunPod cannot be reached.
    """
    key = os.environ.get("RUNPOD_API_KEY", "").strip()
    if not key:
        raise CredentialsError(f"RUNPOD_API_KEY is not set; {_KEY_PAGE}")
    url = os.environ.get("RUNPOD_API_BASE_URL", "").strip() or DEFAULT_URL
    pause = 0.5
    for attempt in range(1, _TRIES + 1):
        try:
            return await _send(url, key, query, variables)
        except HostUnreachableError as error:
            if not repeat or attempt == _TRIES:
                raise
            logger.info("%s; trying again", error)
        await asyncio.sleep(pause)
        pause *= 2
    raise AssertionError("not reached")


async def _send(url: str, key: str, query: str, variables: Mapping[str, object]) -> dict[str, Any]:
    try:
        # The key is in a header, because addresses appear in logs.
        async with httpx.AsyncClient(timeout=_SECONDS) as client:
            response = await client.post(
                f"{url}/graphql",
                json={"query": query, "variables": dict(variables)},
                headers={"authorization": f"Bearer {key}", "user-agent": "seer"},
            )
    except (httpx.HTTPError, OSError) as error:
        words = str(error) or type(error).__name__
        raise HostUnreachableError(f"RunPod cannot be reached: {words}") from error
    if response.status_code in (401, 403):
        raise CredentialsError(f"RunPod refuses the key (HTTP {response.status_code}); {_KEY_PAGE}")
    if response.status_code == 429 or response.status_code >= 500:
        raise HostUnreachableError(
            f"RunPod answers HTTP {response.status_code}; see uptime.runpod.io"
        )
    try:
        answer = cast("dict[str, Any]", response.json())
    except ValueError:
        raise ProviderError(
            f"RunPod's answer (HTTP {response.status_code}) is not JSON: {response.text[:200]!r}"
        ) from None
    if answer.get("errors"):
        raise translate(str(answer["errors"][0].get("message", "no reason given")))
    return cast("dict[str, Any]", answer.get("data") or {})
