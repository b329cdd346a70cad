"""Questions of the supervisor to the interface process, until they are answered."""

from __future__ import annotations

from seer.rpc.wire._protocol import CANNOT_PASS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._channel import Channel

    Answered = Callable[[dict[str, Any]], None]


class Questions:
    """Those that have no answer yet; each gets one, whatever becomes of the process."""

    def __init__(self) -> None:
        self._asked: dict[int, Answered] = {}
        self._number = 0

    def ask(
        self,
        channel: Channel,
        message: dict[str, Any],
        answered: Answered,
        descriptors: list[int] | None = None,
    ) -> None:
        """Ask the process behind `channel`; `answered` is told what it says, or that it ended."""
        self._number += 1
        self._asked[self._number] = answered
        message = {**message, "n": self._number, "descriptors": len(descriptors or [])}
        try:
            channel.send(message, descriptors)
        except OSError as error:
            del self._asked[self._number]
            if error.errno in CANNOT_PASS:
                words = f"descriptors cannot be passed just now: {error.strerror}; try again"
                answered({"error": {"message": words, "busy": True}})
            else:
                answered(_error("the interface has just ended"))

    def answer(self, message: dict[str, Any]) -> None:
        """Hand an answer to whoever asked."""
        answered = self._asked.pop(message["to"], None)
        if answered is not None:
            answered(message)

    def fail(self, why: str) -> None:
        """Nobody is there to answer any more."""
        asked, self._asked = self._asked, {}
        for answered in asked.values():
            answered(_error(why))


def _error(why: str) -> dict[str, Any]:
    return {"error": {"message": why}}
