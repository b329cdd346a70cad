"""The first process of a rented machine. It ends the rental when the machine is no longer needed.

Its argument is its settings as JSON. A rented machine is needed while the keeper of a sandbox runs
on it. Before there is a keeper, it is needed while the controller that prepares it touches a file
(the heartbeat). It never lives longer than `lifetime` seconds. The rental ends when this process
exits (`exit`), or by a request to the vendor (`runpod`), with a key that the vendor gave this
machine. The sandbox's programs run as another user and cannot read that key.

If the controller is gone, the keeper's lease ends the sandbox, and this process then ends the
rental.
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
import urllib.request

_LOOK = 0.25
_AGAIN = 5.0
_TERMINATE = "mutation ($input: PodTerminateInput!) { podTerminate(input: $input) }"


class RentalMonitor:
    """Watches one rented machine."""

    def __init__(self, root: str, *, lease: float, lifetime: float) -> None:
        self._state = os.path.join(root, "state", "seer")
        self._beat = os.path.join(root, "beat")
        self._leave = os.path.join(root, "leave")
        self._lease = lease
        self._lifetime = lifetime
        self._began = time.monotonic()
        self._had_one = False
        os.makedirs(root, mode=0o711, exist_ok=True)
        with open(self._beat, "w"):
            pass

    @staticmethod
    def mark() -> None:
        """Mark this machine as one that holds one sandbox; `seer.isolation` reads the mark."""
        with open("/etc/seer-rented", "w"):
            pass

    def watch(self) -> str:
        """Wait until the machine is no longer needed. Returns the reason."""
        while True:
            reason = self.look()
            if reason is not None:
                return reason
            time.sleep(_LOOK)
            self._collect()

    def look(self) -> str | None:
        """Why the machine is no longer needed; None while it is needed."""
        if self._lifetime and time.monotonic() - self._began > self._lifetime:
            return "its timeout passed"
        if self._lives():
            self._had_one = True
            return None
        if self._had_one:
            return self._recorded_reason()
        if os.path.exists(self._leave):
            return "terminated"
        try:
            silent = time.time() - os.stat(self._beat).st_mtime
        except OSError:
            silent = time.monotonic() - self._began
        # If the clock is set back, the machine must not live forever.
        if silent > self._lease or silent < -self._lease:
            return (
                f"its controller was silent for longer than the lease of {self._lease:g} s "
                f"while it was prepared"
            )
        return None

    def _lives(self) -> bool:
        folder = os.path.join(self._state, "machines")
        try:
            names = os.listdir(folder)
        except OSError:
            return False
        return any(self._is_kept(os.path.join(folder, name)) for name in names)

    def _is_kept(self, folder: str) -> bool:
        """Whether a process holds the lock of a sandbox's folder."""
        try:
            fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # The folder is being created, and its controller still sends heartbeats.
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _recorded_reason(self) -> str:
        try:
            with open(os.path.join(self._state, "ended.jsonl"), encoding="utf-8") as file:
                last = file.readlines()[-1]
            return str(json.loads(last)["reason"])
        except (OSError, ValueError, LookupError):
            return "its keeper was killed"

    def _collect(self) -> None:
        """Reap orphans. The first process inherits them."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def give_back_runpod() -> None:
    """Ask RunPod to end this pod until it does. Does not return."""
    base = os.environ.get("RUNPOD_API_BASE_URL", "https://api.runpod.io")
    pod = os.environ.get("RUNPOD_POD_ID", "")
    body = json.dumps({"query": _TERMINATE, "variables": {"input": {"podId": pod}}})
    headers = {
        "content-type": "application/json",
        "authorization": "Bearer " + os.environ.get("RUNPOD_API_KEY", ""),
        "user-agent": "seer",
    }
    while True:
        request = urllib.request.Request(base + "/graphql", body.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                answer.read()
        except OSError as error:
            sys.stderr.write(f"RunPod has not ended this pod yet: {error}\n")
        time.sleep(_AGAIN)


def _leave(number: int, frame: object) -> None:
    del number, frame
    sys.exit(0)


def main() -> None:
    """Watch, then end the rental."""
    settings = json.loads(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    monitor = RentalMonitor(
        settings["root"], lease=settings["lease"], lifetime=settings["lifetime"]
    )
    if settings["mark"]:
        monitor.mark()
    reason = monitor.watch()
    sys.stdout.write(f"seer: {reason}\n")
    sys.stdout.flush()
    if settings["give_back"] == "runpod":
        give_back_runpod()
    codes = settings["codes"]
    for words, code in codes.items():
        if words in reason:
            sys.exit(code)
    sys.exit(0)


if __name__ == "__main__":
    main()
