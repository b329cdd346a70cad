"""JSON for the page: ASCII only, and nothing that a browser's parser refuses.

Agents and models wrote the content of records. It may hold lone surrogates, which cannot be sent as
UTF-8, and notebooks may hold NaN, which Python reads and writes but JSON does not allow.
"""

import json
import math
from typing import Any, cast

from starlette.responses import Response


def dump(value: Any) -> str:
    """The value as JSON; NaN and infinities become text."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def answer(value: Any, *, status: int = 200) -> Response:
    """A response with the value as JSON."""
    return Response(dump(value), status_code=status, media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, list):
        return [_finite(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Any]", value).items()}
    return value
