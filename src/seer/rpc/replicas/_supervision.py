"""The supervisor's side of copies: it starts, watches and replaces them, and changes their number.

The supervisor forks all copies, because it alone has no threads. It tells the front which copies
exist and how one ended. A copy that ends is replaced, regardless of `restart`. The front decides
which copy runs a call.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from seer.rpc.server._child import Child, ExitReport, new_epoch
from seer.rpc.server._shared import Shared
from seer.rpc.server._supervisor import Questions, Workers

if TYPE_CHECKING:
    from seer.rpc.server._message_socket import MessageSocket
    from seer.rpc.server._poller import Poller
    from seer.rpc.server._supervisor import OnAnswer, Supervisor

STARTING, READY, DRAINING, ENDING = "starting", "ready", "draining", "ending"


class Copy:
    """One copy.

    Attributes:
        number: Its number, which no other copy has had.
        child: Its process.
        shared: The memory that it shares with the supervisor.
        gpu: The only GPU that it sees; None if it sees all GPUs of the machine.
        front: The front's end of the socket between them, until the front has it.
        state: `starting`, `ready`, `draining` or `ending`.
        places: The numbers of its functions.
        failure: Why it could not load the interface, as data.
        questions: What it was asked.
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
        self.questions = Questions()

    def status(self) -> dict[str, Any]:
        """Its state, for the controller."""
        return {
            "copy": self.number,
            "state": self.state,
            "pid": self.child.pid,
            "gpu": self.gpu,
            "running": len(self.shared.unfinished()),
        }

    def leave(self) -> None:
        """In another forked process: close the supervisor's descriptors."""
        self.child.leave()
        if self.front is not None:
            self.front.close()

    def ask(self, message: dict[str, Any], answered: OnAnswer) -> None:
        """Ask the copy, and call `answered` with its answer."""
        self.questions.ask(self.child.socket, message, answered)


MAX_REPLACED = 5
"""How often each copy is replaced, on average, within `WINDOW` seconds before replacing waits."""
WINDOW = 60.0
_NEVER = float("inf")


class Replicas(Workers):
    """All copies of one interface.

    Attributes:
        wanted: How many there should be.
        copies: The copies that exist, by number.
    """

    def __init__(self, supervisor: Supervisor, poller: Poller) -> None:
        super().__init__(supervisor, poller)
        self.wanted = supervisor.config.replicas
        self.copies: dict[int, Copy] = {}
        self._gpus = visible_gpus(os.environ)
        self._numbers = count(1)
        self._start_later = False
        self._about: dict[str, Any] = {}
        """What the copies expose: schema and warnings."""
        self._replaced: list[float] = []
        self._start_at = _NEVER
        self._scalings: list[OnAnswer] = []
        self._draining_asked = False
        self._last_end = ""

    def status(self) -> list[dict[str, Any]]:
        """The state of each copy."""
        return [copy.status() for copy in self.copies.values()]

    def _in(self, *states: str) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.state in states]

    # --- start and end -----------------------------------------------------------------------

    def start(self) -> None:
        """Start all copies; after a restart, when the earlier copies have ended."""
        self._start_later = bool(self.copies)
        if not self._start_later:
            for _ in range(self.wanted):
                self._start_copy()

    def _run_front(self, to_supervisor: MessageSocket, epoch: str) -> int:
        """Serve in the forked process of the front."""
        from ._front import serve_front

        supervisor = self._supervisor
        return serve_front(
            supervisor.config,
            epoch=epoch,
            shared=supervisor.shared,
            to_supervisor=to_supervisor,
            listeners=supervisor.listeners(),
            places=supervisor.places,
            about=self._about,
        )

    def _start_copy(self) -> None:
        number = next(self._numbers)
        gpu = least_used(self._gpus, [copy.gpu for copy in self.copies.values()])
        shared = Shared()
        front, theirs = socket.socketpair()

        def run(to_supervisor: MessageSocket, epoch: str) -> int:
            from ._copy import serve_copy

            front.close()
            supervisor = self._supervisor
            for _, _, listener in supervisor.callers.values():
                listener.close()
            return serve_copy(
                supervisor.config,
                epoch=epoch,
                shared=shared,
                to_supervisor=to_supervisor,
                front=theirs,
                places=supervisor.places,
                gpu=gpu,
            )

        child = Child(new_epoch(), run, self._supervisor.forget)
        theirs.close()
        copy = Copy(number, child, shared, gpu)
        copy.front = front
        self.copies[number] = copy
        child.watch(
            self._poller,
            lambda messages: self._hear(copy, messages),
            lambda: self._on_exit(copy),
        )

    def end_all(self, because: str) -> None:
        """End all copies."""
        self._start_at = _NEVER
        for copy in self.copies.values():
            self._end(copy, because)

    def _end(self, copy: Copy, because: str) -> None:
        copy.state = ENDING
        copy.child.kill(because)

    def leave(self) -> None:
        """In a forked process: close the supervisor's descriptors."""
        for copy in self.copies.values():
            copy.leave()

    def reap_all(self) -> None:
        """Wait until all copies, which were killed, have ended."""
        for copy in self.copies.values():
            copy.child.reap()
        self.copies = {}

    def tick(self, now: float) -> None:
        """Check timeouts and stopped processes, and start copies that are due."""
        for copy in list(self.copies.values()):
            if copy.state != ENDING:
                copy.child.check(copy.shared, now)
            if self._supervisor.state == "up":
                self._hand_over(copy)
        if now >= self._start_at:
            self._start_at = _NEVER
            if len(self._in(STARTING, READY)) < self.wanted:
                self._replaced.append(now)
                self._start_copy()
            self._adjust()

    # --- messages of copies ------------------------------------------------------------------

    def _hear(self, copy: Copy, messages: list[dict[str, Any]]) -> None:
        """Handle messages of a copy."""
        for message in messages:
            op = message.pop("op")
            if op == "ready":
                self._on_ready(copy, message)
            elif op == "failed":
                copy.failure = message
            elif op == "poisoned":
                copy.child.poisoned = message["reason"]
            elif op == "answer":
                copy.questions.answer(message)

    def _on_ready(self, copy: Copy, message: dict[str, Any]) -> None:
        copy.places = message["places"]
        if copy.state == STARTING:
            copy.state = READY
        if self._supervisor.child is None:
            if len(self._in(READY)) == self.wanted:
                self._about = {"schema": message["schema"], "warnings": message["warnings"]}
                self._supervisor.fork(self._run_front)
        elif self._supervisor.state == "up":
            self._hand_over(copy)
            self._adjust()

    def on_up(self) -> None:
        """Give all ready copies to the front, which is ready now."""
        for copy in self._in(READY):
            self._hand_over(copy)
        self._adjust()

    def _hand_over(self, copy: Copy) -> None:
        """Pass a ready copy's socket to the front; `tick` tries again if that is refused now."""
        if copy.front is None or copy.state != READY:
            return
        answers: list[dict[str, Any]] = []
        message = {"op": "copy", "copy": copy.number}
        self._supervisor.ask(message, answers.append, [copy.front.fileno()])
        # If the descriptor cannot be passed, the error is there at once; the front answers later.
        if not any("busy" in answer.get("error", ()) for answer in answers):
            copy.front.close()
            copy.front = None

    def _on_exit(self, copy: Copy) -> None:
        del self.copies[copy.number]
        last = ExitReport(copy.shared, copy.places)
        ended = self._supervisor.describe_end(copy.child, last)
        copy.questions.fail(f"copy {copy.number} has ended: {ended}")
        if copy.front is not None:
            copy.front.close()
        expected = copy.state == ENDING
        if self._start_later:
            if not self.copies:
                self.start()
        elif self._supervisor.child is None:
            if not expected:
                self._fail_to_start(copy, ended)
        else:
            if not expected:
                self._on_death(copy, ended)
            self._adjust()

    def _fail_to_start(self, copy: Copy, ended: str) -> None:
        """Called when a copy could not load the interface before there was a front."""
        self.end_all("another copy could not load the interface")
        self._supervisor.fail_to_start(copy.failure, ended, copy.child.tail())

    def _on_death(self, copy: Copy, ended: str) -> None:
        supervisor = self._supervisor
        self._last_end = ended
        if copy.state == STARTING:
            reason = ended if copy.failure is None else str(copy.failure["message"])
            self._last_end = f"copy {copy.number} could not be started"
            words = f"{self._last_end}: {reason}"
            if not supervisor.blind:
                self._last_end = words
            supervisor.note({"kind": "copy", "message": words})
            if self._scalings:
                self.wanted = max(len(self._in(STARTING, READY)), 1)
                error = copy.failure or {"message": words}
                self._answer_scalings({"error": dict(error)})
        else:
            message = f"copy {copy.number} has ended: {ended}"
            supervisor.note({"kind": "copy", "message": message})
            supervisor.restarts += 1
            supervisor.ask({"op": "ended", "copy": copy.number, "why": ended}, _nothing)

    # --- the number of copies ----------------------------------------------------------------

    def scale(self, wanted: int, answered: OnAnswer) -> None:
        """Change the number of copies, and answer when it is reached."""
        if self._supervisor.state != "up":
            answered({"error": {"message": "the interface is not running"}})
            return
        self.wanted = wanted
        self._scalings.append(answered)
        for _ in range(wanted - len(self._in(STARTING, READY))):
            self._start_copy()
        self._adjust()

    def on_drained(self, number: int) -> None:
        """End a copy that has finished its work."""
        copy = self.copies.get(number)
        if copy is not None:
            self._end(copy, "fewer copies are wanted")

    def _adjust(self) -> None:
        """Start or drain copies until there are as many as wanted; then answer `scale` requests."""
        if self._supervisor.state != "up":
            return
        have = len(self._in(STARTING, READY))
        if have < self.wanted:
            self._plan_start(time.monotonic())
        elif have > self.wanted:
            self._shrink(have - self.wanted)
        elif len(self.copies) == have and not self._in(STARTING):
            self._answer_scalings({})

    def _answer_scalings(self, answer: dict[str, Any]) -> None:
        waiting, self._scalings = self._scalings, []
        for answered in waiting:
            answered(answer)

    def _plan_start(self, now: float) -> None:
        self._replaced = [when for when in self._replaced if when > now - WINDOW]
        recent = len(self._replaced)
        too_often = recent >= MAX_REPLACED * self.wanted
        if too_often and not self.copies:
            self._start_at = _NEVER
            words = f"its copies ended {recent} times within {WINDOW:g} s. {self._last_end}"
            self._answer_scalings({"error": {"message": words}})
            self._supervisor.give_up(words)
        elif self._start_at == _NEVER:
            # At once at first, then with a delay that doubles.
            often = recent - self.wanted
            delay = min(0.1 * 2**often, 3.0) if often > 0 else 0.0
            self._start_at = self._replaced[0] + WINDOW if too_often else now + delay

    def _shrink(self, surplus: int) -> None:
        for copy in self._in(STARTING)[:surplus]:
            self._end(copy, "fewer copies are wanted")
            surplus -= 1
        if surplus and not self._draining_asked:
            self._draining_asked = True
            self._supervisor.ask({"op": "drain", "count": surplus}, self._on_draining)

    def _on_draining(self, answer: dict[str, Any]) -> None:
        self._draining_asked = False
        for number in answer.get("going", ()):
            copy = self.copies.get(number)
            if copy is not None and copy.state == READY:
                copy.state = DRAINING

    def reload(self, answered: OnAnswer) -> None:
        """Let all copies load the file again, and the front serve the functions it has now.

        If the first copy cannot load the file, all copies keep what they have.
        """
        copies = self._in(READY, DRAINING)
        if not copies:
            answered({"error": {"message": "no copy of the interface runs at the moment"}})
            return
        first, *others = copies

        def loaded(answer: dict[str, Any]) -> None:
            if "error" in answer:
                answered(answer)
            else:
                self._reload_others(others, answer, answered)

        first.ask({"op": "reload"}, loaded)

    def _reload_others(
        self, copies: list[Copy], loaded: dict[str, Any], answered: OnAnswer
    ) -> None:
        left = {copy.number for copy in copies}

        def finish() -> None:
            about = {"schema": loaded["schema"], "warnings": loaded["warnings"]}
            self._supervisor.ask({"op": "expose", **about}, answered)

        def after(copy: Copy, answer: dict[str, Any]) -> None:
            if "error" in answer and "file" in answer["error"]:
                # The copy that replaces it loads the file as it is now.
                copy.child.kill("it could not load a file that another copy had loaded")
            left.discard(copy.number)
            if not left:
                finish()

        if not copies:
            finish()
        for copy in copies:
            copy.ask({"op": "reload"}, lambda answer, copy=copy: after(copy, answer))


def _nothing(_answer: dict[str, Any]) -> None:
    return


def visible_gpus(environment: Mapping[str, str], devices: str = "/dev") -> list[str]:
    """The names of the GPUs, in order.

    Args:
        environment: The environment of the process.
        devices: The folder of device files.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        found: list[str] = []
        for name in named.split(","):
            if name.strip() in ("", "-1", "NoDevFiles"):
                # CUDA ignores everything after an invalid name.
                break
            found.append(name.strip())
        return found
    try:
        files = os.listdir(devices)  # noqa: PTH208 (import time)
    except OSError:
        return []
    # CUDA numbers the GPUs that it sees from 0 on, regardless of the numbers of their files.
    count = sum(name.startswith("nvidia") and name[6:].isdigit() for name in files)
    return [str(i) for i in range(count)]


def least_used(gpus: list[str], used: Iterable[str | None]) -> str | None:
    """The GPU for one more copy, given the GPUs of the others; None if there are no GPUs."""
    taken = list(used)
    return min(gpus, key=taken.count) if gpus else None
