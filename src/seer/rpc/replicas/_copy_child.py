"""One copy of an interface as the supervisor sees it: its process, its state, its GPU."""

from __future__ import annotations

from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from seer.rpc.server._child import Child
    from seer.rpc.server._shared import Shared

    Answered = Callable[[dict[str, Any]], None]

STARTING, READY, DRAINING, ENDING = "starting", "ready", "draining", "ending"


class Copy:
    """One copy.

    Attributes:
        number: Its number, which no other copy has had.
        child: Its process.
        shared: What it shares with the supervisor.
        gpu: The GPU that it sees; None where it sees what the machine has.
        front: The front's end of the channel between both, until it is handed over.
        state: `starting`, `ready`, `draining` or `ending`.
        places: Numbers of its functions.
        failure: Why it could not load the interface, as data.
        asked: Who waits for its answers.
    """

    def __init__(self, number: int, child: Child, shared: Shared, gpu: str | None) -> None:
        self.number = number
        self.child = child
        self.shared = shared
        self.gpu = gpu
        self.front: socket.socket | None = None
        self.state = STARTING
        self.places: dict[str, int] = {}
        self.failure: dict[str, Any] | None = None
        self.asked: dict[int, Answered] = {}
        self._questions = count(1)

    def status(self) -> dict[str, Any]:
        """What a person wants to know of it."""
        return {
            "copy": self.number,
            "state": self.state,
            "pid": self.child.pid,
            "gpu": self.gpu,
            "running": len(self.shared.running()),
        }

    def leave(self) -> None:
        """In another child's process: close what is the supervisor's."""
        self.child.leave()
        if self.front is not None:
            self.front.close()

    def ask(self, message: dict[str, Any], answered: Answered) -> None:
        """Ask the copy something."""
        number = next(self._questions)
        self.asked[number] = answered
        try:
            self.child.channel.send({**message, "n": number, "descriptors": 0})
        except OSError:
            del self.asked[number]
            answered({"error": {"message": f"copy {self.number} has just ended"}})
