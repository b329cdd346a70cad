"""Descriptors that cannot be passed: arrays come inline, and errors name the cause.

The kernel refuses to pass descriptors (`ETOOMANYREFS`) once all processes of a user have more of
them in flight than one process may have open. A neighbour with the same user id can cause that.
"""

import array
import contextlib
import errno
import gc
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import GateBusyError, ResultError
from seer.providers.agent.connectors import Connector
from seer.rpc.client import Gate, _mappings
from seer.rpc.client._address import connect
from tests.rpc.serving import SOON, ControlFailed, Served, serving

# One after the other: descriptors that one test has in flight count for the others too.
pytestmark = pytest.mark.xdist_group("descriptors")

OPEN = 128
"""Descriptors that the attacked processes may have open."""
SOURCE = """
    import numpy as np

    @expose
    def small(x: int) -> int:
        return x + 1

    @expose
    def ramp(count: int) -> np.ndarray:
        return np.arange(count, dtype="f8")

    @expose
    def total(values: np.ndarray) -> float:
        return float(values.sum())

    @expose
    def many(count: int) -> list:
        return [np.full(1000, i) for i in range(count)]

    @expose
    def slots() -> int:
        import os
        return sum("seer-slot" in line for line in open("/proc/self/maps"))
"""


def limited() -> list[str]:
    """The prefix that makes the kernel's limit apply to a command, even as root."""
    prefix = ["prlimit", f"--nofile={OPEN}:{OPEN}"]
    if os.geteuid() == 0:
        prefix += ["setpriv", "--bounding-set=-sys_admin,-sys_resource"]
    if any(shutil.which(tool) is None for tool in prefix if not tool.startswith("--")):
        pytest.skip("needs prlimit and setpriv")
    return prefix


@contextlib.contextmanager
def many_in_flight() -> Generator[None]:
    """Keep more descriptors of this user in flight than `OPEN`."""
    ends = [socket.socketpair() for _ in range(2)]
    hand, nothing = array.array("i"), os.open("/dev/null", os.O_RDONLY)
    hand.extend([nothing] * 250)
    try:
        for ours, _ in ends:
            ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, hand)])
        yield
    finally:
        os.close(nothing)
        for pair in ends:
            for end in pair:
                end.close()


def open_descriptors() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())


def within(call: Callable[[], Any]) -> Any:
    """What a call gives or raises; a failure if it hangs."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert found, "the call hangs"
    return found[0]


@pytest.fixture
def served() -> Generator[Served]:
    with serving(SOURCE, wrapped=limited()) as served:
        yield served


@pytest.mark.full
def test_array_results_arrive_while_a_neighbour_floods_the_user_with_descriptors(
    served: Served,
) -> None:
    gate = served.gate()
    with many_in_flight():
        for _ in range(3):
            found = within(lambda: gate.call("ramp", (200_000,)))
            assert isinstance(found, np.ndarray)
            assert found[-1] == 199_999
    # No slot was lost although the caller never received it.
    assert gate.call("ramp", (200_000,))[-1] == 199_999
    assert gate.call("slots") <= 2


@pytest.mark.full
def test_a_copys_array_results_arrive_during_such_a_flood_and_its_errors_name_the_cause() -> None:
    callers: dict[str, Any] = {"a": {}, "b": {}}
    with serving(SOURCE, wrapped=limited(), replicas=2, callers=callers) as served:
        gate = served.gate()
        assert gate.call("small", (1,)) == 2
        with many_in_flight():
            found = within(lambda: gate.call("ramp", (200_000,)))
            assert isinstance(found, np.ndarray)
            assert found[-1] == 199_999
            new = within(lambda: served.gate("b").call("small", (1,)))
            assert isinstance(new, GateBusyError)
            assert os.strerror(errno.ETOOMANYREFS) in str(new)
            array_sent = within(lambda: gate.call("total", (np.ones(500_000),)))
            assert isinstance(array_sent, GateBusyError | float)
        assert within(lambda: served.gate("b").call("small", (1,))) == 2
        assert within(lambda: gate.call("total", (np.ones(500_000),))) == 500_000


@pytest.mark.full
def test_copies_that_start_during_such_a_flood_take_calls_after_it() -> None:
    with contextlib.ExitStack() as flood:
        flood.enter_context(many_in_flight())
        with serving(SOURCE, wrapped=limited(), replicas=2) as served:
            # The supervisor has tried to give the copies to the front before it answers this.
            assert served.control("GET", "/v1/health")["state"] == "up"
            flood.close()
            assert within(lambda: served.gate().call("small", (1,))) == 2


@pytest.mark.full
def test_a_caller_is_added_after_such_a_flood_and_the_refusal_names_the_cause(
    served: Served,
) -> None:
    message: dict[str, Any] = {"name": "b", "socket": str(served.socket_path("b")), "budget": {}}
    with many_in_flight(), pytest.raises(ControlFailed) as caught:
        served.control("POST", "/v1/callers", message)
    assert caught.value.error["type"] == "GateBusyError"
    assert os.strerror(errno.ETOOMANYREFS) in caught.value.error["message"]
    served.control("POST", "/v1/callers", message)
    assert served.gate("b").call("small", (1,)) == 2


CLIENT = """
import asyncio, sys
import numpy as np
from seer.rpc.client import Gate

with Gate("interface", sys.argv[1]) as gate:
    values = np.ones(500_000)
    print(gate.call("total", (values,)))
    print(asyncio.run(gate.acall("total", (values,))))
"""


@pytest.mark.full
def test_a_caller_that_can_pass_no_descriptors_sends_its_arrays_inline(served: Served) -> None:
    with many_in_flight():
        done = subprocess.run(
            [*limited(), sys.executable, "-c", CLIENT, f"path:{served.socket_path('a')}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout.split() == ["500000.0", "500000.0"], done.stderr


@pytest.mark.full
def test_a_gate_without_free_descriptors_takes_arrays_inline(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        gate = served.gate()
        # Once before, because modules for arrays are imported with the first.
        assert gate.call("total", (np.ones(10),)) == 10
        gates: list[Gate] = []
        while len(gates) < OPEN:
            one = served.gate()
            stack.callback(one.close)
            gates.append(one)
            if isinstance(within(lambda one=one: one.call("small", (1,))), GateBusyError):
                break
        else:
            pytest.fail("the gate has more descriptors than it may have")
        assert within(lambda: gate.call("total", (np.ones(500_000),))) == 500_000


@pytest.mark.full
def test_a_jail_that_forbids_memfds_sends_arrays_inline_and_asks_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def forbid(name: str, _flags: int = 0) -> int:
        asked.append(name)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(_mappings, "_forbidden", False)
    monkeypatch.setattr(os, "memfd_create", forbid)
    gate = served.gate()
    assert [gate.call("total", (np.ones(500_000),)) for _ in range(2)] == [500_000.0] * 2
    assert gate.call("ramp", (200_000,))[-1] == 199_999
    assert len(asked) == 1


@pytest.mark.full
def test_a_memfd_that_cannot_be_filled_is_left_for_the_socket(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = open_descriptors()
    monkeypatch.setattr(os, "pwrite", full)
    with served.gate() as gate:
        assert gate.call("total", (np.ones(500_000),)) == 500_000
    assert open_descriptors() == before


@pytest.mark.full
def test_a_result_of_more_arrays_than_one_message_takes_arrives_or_is_refused(
    served: Served,
) -> None:
    gate = served.gate()
    found = within(lambda: gate.call("many", (1200,)))
    assert [int(one[0]) for one in found] == list(range(1200))
    refused = within(lambda: gate.call("many", (3000,)))
    assert isinstance(refused, ResultError)
    assert "3000 arrays" in str(refused)


@pytest.mark.full
def test_a_process_without_free_descriptors_is_told_that_its_arrays_could_not_come(
    served: Served,
) -> None:
    gate = served.gate()
    assert gate.call("small", (1,)) == 2
    taken: list[int] = []
    came: list[Any] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    gc.disable()  # collecting garbage may close descriptors
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 3, hard))
    try:
        # Repeated in case another thread of this process has closed a descriptor meanwhile.
        # Received arrays are kept: memory that is returned is reused for the next array, with its
        # descriptor.
        for _ in range(20):
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            try:
                came.append(gate.call("ramp", (200_000,)))
            except GateBusyError as error:
                assert "open files" in str(error)
                break
        else:
            pytest.fail("arrays came although no descriptor was free")
    finally:
        gc.enable()
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert gate.call("ramp", (200_000,))[-1] == 199_999


def test_a_connector_that_cannot_pass_connections_says_why_and_is_asked_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gate.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    ours, theirs = socket.socketpair()
    failures = [3]

    class Refusing(socket.socket):
        def sendmsg(self, *arguments: Any) -> int:
            if failures[0]:
                failures[0] -= 1
                raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
            return super().sendmsg(*arguments)

    connector = Connector(os.dup(theirs.fileno()), os.fsencode(path))
    plain, refusing = connector._socket, Refusing(fileno=os.dup(theirs.fileno()))  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(connector, "_socket", refusing)
    stop = threading.Event()

    def keep() -> None:
        while not stop.is_set():
            connector.answer()
            stop.wait(0.002)

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        with connect(f"fd:{ours.fileno()}") as connected:
            assert connected.fileno() >= 0
        failures[0] = 1000
        with pytest.raises(GateBusyError, match=os.strerror(errno.ETOOMANYREFS)):
            connect(f"fd:{ours.fileno()}")
    finally:
        stop.set()
        keeper.join()
        for one in (listener, ours, theirs, plain, refusing):
            one.close()
