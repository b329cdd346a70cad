"""Copies that end and start while calls run: each call ends once, and runs at most once."""

import contextlib
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import (
    CallLostError,
    ConfigError,
    DeadlineExceededError,
    GateError,
    HandleError,
    InterfaceDiedError,
    InterfaceRestartedError,
    SandboxStateError,
)
from seer.rpc.client import Gate
from tests.rpc.replicas import WAIT_FOR, copies, pids
from tests.rpc.serving import ControlFailed, Served, serving, wait_until

pytestmark = pytest.mark.full

SOURCE = (
    WAIT_FOR
    + """
    import ctypes

    from seer.rpc import Handle

    def note(folder, word):
        fd = os.open(f"{folder}/{os.getpid()}.ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{word}\\n".encode())
        os.close(fd)

    @expose(stateful=False)
    def work(folder: str, word: str) -> str:
        note(folder, word)
        time.sleep(0.002)
        return word

    @expose
    def work_at_home(folder: str, word: str) -> str:
        note(folder, word)
        time.sleep(0.002)
        return word

    @expose(stateful=False, idempotent=True)
    def may_repeat(folder: str, word: str) -> str:
        note(folder, word)
        time.sleep(0.002)
        return word

    @expose
    def keep(value: int) -> Handle:
        return value

    @expose
    def home() -> int:
        return os.getpid()

    @expose(stateful=False)
    def leave(code: int) -> None:
        os._exit(code)

    @expose(stateful=False)
    def items(n: int, end: int):
        for i in range(n):
            yield i
            if i == end:
                os._exit(9)

    @expose(stateful=False, timeout=0.2)
    def stubborn(seconds: float) -> None:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
"""
)
CALLERS: dict[str, dict[str, float]] = {"a": {}, "b": {}, "c": {}, "d": {}}


def end(served: Served, pid: int) -> None:
    """Kill a copy, and wait until another has taken its place."""
    count = len(pids(served))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in pids(served) and len(pids(served)) == count)


class Load:
    """Callers that call without pause, each word once, until they are stopped."""

    def __init__(self, served: Served, folder: Path, functions: tuple[str, ...]) -> None:
        self.ended: dict[str, str] = {}
        self._folder = folder
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._run, args=(served.gate(name), function))
            for name, function in itertools.product(CALLERS, functions)
        ]

    def _run(self, gate: Any, function: str) -> None:
        while not self._stop.is_set():
            word = f"{function}-{next(self._numbers)}"
            try:
                assert gate.call(function, (str(self._folder), word)) == word
                outcome = "ok"
            except GateError as error:
                outcome = type(error).__name__
            assert word not in self.ended
            self.ended[word] = outcome

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        self.go_on()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), "a call has not ended"

    def go_on(self, calls: int = 40) -> None:
        """Wait until this many more calls have ended."""
        goal = len(self.ended) + calls
        wait_until(lambda: len(self.ended) >= goal)

    def executed(self) -> Counter[str]:
        """How often each word was executed, over all copies that there were."""
        found: Counter[str] = Counter()
        for file in self._folder.glob("*.ran"):
            found.update(file.read_text().split())
        return found


@pytest.fixture
def spread() -> Generator[Served]:
    """A fresh one, so that its callers' homes will be in both copies."""
    with serving(SOURCE, replicas=2, callers=CALLERS, drain=0.3) as served:
        yield served


@pytest.fixture(scope="module")
def lasting() -> Generator[Served]:
    with serving(SOURCE, replicas=2, callers=CALLERS, grace=0.3, drain=0.5) as served:
        yield served


@pytest.fixture
def served(lasting: Served, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """An interface that earlier tests used, scaled to two copies again."""
    lasting.control("POST", "/v1/scale", {"replicas": 2})
    folder = str(tmp_path_factory.mktemp("before"))
    for name in CALLERS:
        # A caller gets one error when its home ended; this one belongs to the test that ended it.
        with contextlib.suppress(InterfaceRestartedError):
            lasting.gate(name).call("work_at_home", (folder, "told"))
    return lasting


def test_killed_copies_lose_only_what_they_ran_and_nothing_runs_twice(
    served: Served, tmp_path: Path
) -> None:
    with Load(served, tmp_path, ("work", "work_at_home", "may_repeat")) as load:
        for _ in range(3):
            end(served, min(pids(served)))
            load.go_on()
    executed = load.executed()
    repeated = {word for word, count in executed.items() if count > 1}
    assert all(word.startswith("may_repeat") for word in repeated)
    outcomes = Counter(load.ended.values())
    assert set(outcomes) <= {"ok", "CallLostError", "InterfaceRestartedError"}
    for word, outcome in load.ended.items():
        assert outcome != "ok" or executed[word] >= 1
        # Only calls that were not executed may end as InterfaceRestartedError.
        assert outcome != "InterfaceRestartedError" or executed[word] == 0
    lost = [word for word, outcome in load.ended.items() if outcome == "CallLostError"]
    assert len(lost) <= 3
    assert not [word for word in lost if word.startswith("may_repeat")]


def test_scaling_loses_no_call(served: Served, tmp_path: Path) -> None:
    with Load(served, tmp_path, ("work", "work_at_home")) as load:
        for count in (1, 3, 1, 2):
            served.control("POST", "/v1/scale", {"replicas": count})
            assert len(copies(served)) == count
            load.go_on()
    assert set(load.ended.values()) == {"ok"}
    assert load.executed() == Counter(load.ended.keys())


def test_a_copy_that_shall_go_finishes_what_it_runs(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "go"
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(served.gate().call("wait_for", (str(path),))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    running = pids(served)
    scaling = threading.Thread(target=served.control, args=("POST", "/v1/scale", {"replicas": 1}))
    scaling.start()
    wait_until(lambda: [copy["state"] for copy in copies(served)].count("draining") == 1)
    path.touch()
    for thread in (*threads, scaling):
        thread.join(timeout=30)
    assert set(found) == running
    assert len(copies(served)) == 1


def test_handles_keep_a_copy_for_a_while_and_their_owner_is_told(spread: Served) -> None:
    owners = {name: spread.gate(name) for name in CALLERS}
    kept = {name: gate.call("keep", (7,)) for name, gate in owners.items()}
    assert all(handle.fetch() == 7 for handle in kept.values())
    spread.control("POST", "/v1/scale", {"replicas": 1})
    told = 0
    for name, gate in owners.items():
        try:
            assert gate.call("home") in pids(spread)
            assert kept[name].fetch() == 7
        except InterfaceRestartedError as error:
            assert "fewer copies" in str(error)
            told += 1
            with pytest.raises(HandleError):
                kept[name].fetch()
            assert gate.call("home") in pids(spread)
    assert 0 < told < 4


def test_a_caller_that_never_pauses_cannot_keep_a_copy(spread: Served, tmp_path: Path) -> None:
    gates = [spread.gate(name) for name in CALLERS for _ in range(2)]
    kept = [gate.call("keep", (1,)) for gate in gates]
    over, told = threading.Event(), Counter[str]()

    def call(gate: Gate) -> None:
        while not over.is_set():
            try:
                gate.call("work_at_home", (str(tmp_path), "word"))
            except InterfaceRestartedError:
                told["restarted"] += 1

    threads = [threading.Thread(target=call, args=(gate,)) for gate in gates]
    for thread in threads:
        thread.start()
    spread.control("POST", "/v1/scale", {"replicas": 1})
    over.set()
    for thread in threads:
        thread.join(timeout=30)
    assert len(copies(spread)) == 1
    assert 1 <= told["restarted"] < len(kept)


def test_a_lost_stream_says_so_after_its_items(served: Served) -> None:
    found: list[int] = []
    with pytest.raises(CallLostError, match="status 9"):
        for item in served.gate().stream("items", (100, 5)):
            found.append(item)
    assert found == list(range(6))
    wait_until(lambda: len(pids(served)) == 2)


def test_a_function_that_does_not_stop_costs_its_copy_only(served: Served) -> None:
    before = pids(served)
    with pytest.raises(DeadlineExceededError, match="its timeout of 0.2 s"):
        served.gate().call("stubborn", (60.0,))
    wait_until(lambda: len(pids(served)) == 2 and len(pids(served) & before) == 1)


def test_a_number_of_copies_that_cannot_be_is_refused(served: Served) -> None:
    for wrong in (0, -1, 1.5, "2", True, None):
        with pytest.raises(ControlFailed, match="replicas"):
            served.control("POST", "/v1/scale", {"replicas": wrong})
    assert len(pids(served)) == 2


def test_a_new_copy_that_cannot_load_is_reported_and_the_others_go_on(served: Served) -> None:
    source = served.file.read_text()
    served.file.write_text(source + "\nraise RuntimeError('no more of these')\n")
    try:
        with pytest.raises(ControlFailed, match="no more of these"):
            served.control("POST", "/v1/scale", {"replicas": 3})
    finally:
        served.file.write_text(source)
    gate = served.gate()
    # The first call may fail because of a copy that the caller lost in an earlier test.
    with contextlib.suppress(InterfaceRestartedError):
        gate.call("home")
    assert gate.call("home") in pids(served)
    assert len(pids(served)) == 2


def test_one_process_cannot_be_scaled() -> None:
    with serving(SOURCE) as served, pytest.raises(ControlFailed, match="one process"):
        served.control("POST", "/v1/scale", {"replicas": 2})


def test_copies_that_keep_ending_end_the_interface_with_the_reason() -> None:
    with serving(SOURCE, replicas=2) as served:
        served.control("POST", "/v1/scale", {"replicas": 1})
        gate = served.gate()
        errors: list[Exception] = []

        def dead() -> bool:
            try:
                gate.call("leave", (41,))
            except (CallLostError, InterfaceDiedError) as error:
                errors.append(error)
            return isinstance(errors[-1], InterfaceDiedError)

        wait_until(dead, timeout=60)
        assert len(errors) <= 10
        assert "status 41" in str(errors[-1])
        wait_until(lambda: served.control("GET", "/v1/health")["state"] == "dead")
        wait_until(lambda: not copies(served))


def test_without_its_front_the_interface_starts_again_and_lost_calls_are_recorded(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"
    with serving(SOURCE, replicas=2, restart="on-failure", record=str(record)) as served:
        followed = served.follow("a")
        gate = served.gate()
        before = gate.call("home")
        errors: list[Exception] = []
        running = threading.Thread(
            target=_catch, args=(errors, served.gate(), "wait_for", (str(tmp_path / "never"),))
        )
        running.start()
        wait_until(lambda: bool(list(tmp_path.glob("never.*"))))
        served.kill_interface()
        with pytest.raises(InterfaceRestartedError):
            gate.call("home")
        assert gate.call("home") != before
        assert len(pids(served)) == 2
        assert not _alive(before)
        running.join(timeout=20)
        assert [type(error) for error in errors] == [CallLostError]
        lines = served.recorded(followed)
        lost = [line["outcome"] for line in lines if line.get("function") == "wait_for"]
        assert lost == ["CallLostError"]


def test_nothing_outlives_a_supervisor_that_is_killed() -> None:
    with serving(SOURCE, replicas=2) as served:
        running = [served.pid, *pids(served)]
        served.process.kill()
        served.process.wait(timeout=20)
        wait_until(lambda: not any(map(_alive, running)))


def test_a_scoped_sandbox_serves_and_scales_copies(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(
        "import os\n\n\n@expose(stateful=False)\ndef where() -> int:\n    return os.getpid()\n"
    )
    with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        for wrong in (0, True, 2.0):
            with pytest.raises(ConfigError, match="replicas"):
                scoped.serve(file, replicas=wrong)  # pyright: ignore[reportArgumentType]
        tools = scoped.serve(file, replicas=2).connect()
        assert [copy.state for copy in scoped.describe("tools").copies] == ["ready", "ready"]
        assert len({tools.where() for _ in range(10)}) == 2
        scoped.scale("tools", 1)
        assert len({tools.where() for _ in range(10)}) == 1
        with pytest.raises(ConfigError, match="replicas"):
            scoped.scale("tools", 0)
        scoped.serve(file, name="single")
        assert scoped.describe("single").copies == ()
        with pytest.raises(SandboxStateError, match="one process"):
            scoped.scale("single", 2)


def _catch(
    errors: list[Exception], gate: Gate, function: str, arguments: tuple[object, ...]
) -> None:
    try:
        gate.call(function, arguments)
    except GateError as error:
        errors.append(error)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
