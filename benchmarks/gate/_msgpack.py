# pyright: basic
"""msgpack with type hints, which the library does not have. Runs in the peers' environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgpack

pack: Callable[[Any], bytes] = cast("Any", msgpack.packb)
unpack: Callable[[bytes], Any] = cast("Any", msgpack.unpackb)
