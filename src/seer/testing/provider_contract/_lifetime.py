"""Checks of how machines start and end, and of leases."""

import asyncio
import contextlib
import itertools
import signal
import time

from seer.errors import SandboxLostError, SandboxNotFoundError, SandboxPausedError
from seer.providers import Machine
from seer.testing.provider_contract._subject import (
    Subject,
    checks_in,
    equal,
    eventually,
    expect,
    raises,
    sh,
)

_START = """
machine = run_sync(provider.start(MachineSpec(isolation=isolation, lease=float(arguments[0]))))
run_sync(machine.write_file("left-behind", b"hello"))
run_sync(machine.exec(["/bin/sh", "-c", "sleep 600 >/dev/null 2>&1 &"]))
if "detach" in arguments:
    run_sync(machine.detach())
if "pause" in arguments:
    run_sync(machine.pause())
say(machine.id)
sys.stdin.read()
"""

_ADOPT = """
machine = run_sync(provider.find(arguments[0]))
say(run_sync(machine.read_file("left-behind")).decode())
sys.stdin.read()
"""


async def _is_listed(subject: Subject, machine_id: str) -> bool:
    return any(status.id == machine_id for status in await subject.provider.list())


async def _ends(subject: Subject, machine_id: str, *, within: float) -> str:
    """Wait until a machine is gone, and return the message of `find`."""

    async def gone() -> bool:
        return not await _is_listed(subject, machine_id)

    await eventually(gone, f"machine {machine_id} has ended", within=within)
    error = await raises(SandboxNotFoundError, subject.provider.find(machine_id), "a dead machine")
    return str(error)


async def a_running_machine_is_listed(subject: Subject) -> None:
    before = time.time()
    async with subject.fresh(label="contract label") as machine:
        statuses = [s for s in await subject.provider.list() if s.id == machine.id]
        equal(len(statuses), 1, "entries in the listing")
        status = statuses[0]
        equal(status.label, "contract label", "label")
        equal(status.provider, subject.provider.name, "provider")
        expect(before - 5 <= status.started_at <= time.time() + 5, f"start {status.started_at}")
        expect(
            status.controller_alive and not status.detached,
            f"the listing says that this process holds it: {status}",
        )
    expect(not await _is_listed(subject, machine.id), "an ended machine is not listed")


async def machines_have_ids_of_their_own(subject: Subject) -> None:
    async with subject.fresh() as one, subject.fresh() as other:
        expect(one.id != other.id, "two machines have the same id")


async def machines_do_not_see_each_other(subject: Subject) -> None:
    async with subject.fresh() as one, subject.fresh() as other:
        await sh(one, "echo mine > private; (exec -a visible-name sleep 600) >/dev/null 2>&1 &")
        for folder in (one.layout.workdir, one.layout.home, one.layout.tmp):
            out = (await sh(other, f"ls {folder}")).stdout
            expect(b"private" not in out, f"{folder} of one machine is visible in another")


async def terminating_ends_everything_and_twice_is_harmless(subject: Subject) -> None:
    async with subject.fresh() as machine:
        await sh(machine, "sleep 600 >/dev/null 2>&1 &")
        await machine.terminate()
        await machine.terminate()
        error = await raises(SandboxLostError, machine.exec(["true"]), "a command afterwards")
        expect("terminated" in str(error), f"the error says that it was terminated: {error}")
        await raises(SandboxLostError, machine.read_file("x"), "a file afterwards")
        said = await _ends(subject, machine.id, within=30)
        expect("terminated" in said, f"find says how it ended: {said}")


async def a_cancelled_start_leaves_nothing(subject: Subject) -> None:
    before = {status.id for status in await subject.provider.list()}
    for pause in (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06):
        starting = asyncio.create_task(subject.provider.start(subject.spec))
        await asyncio.sleep(pause)
        starting.cancel()
        result = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(result, Machine):
            await result.terminate()

    async def gone() -> bool:
        return {status.id for status in await subject.provider.list()} <= before

    await eventually(gone, "machines whose start was cancelled are gone")


async def an_unknown_id_is_not_found(subject: Subject) -> None:
    for name in ("sb-0123456789abcdef", "", "../../etc", "sb-../x"):
        await raises(SandboxNotFoundError, subject.provider.find(name), f"id {name!r}")


async def what_is_under_way_when_a_machine_ends_fails_with_the_reason(subject: Subject) -> None:
    async with subject.fresh() as machine:
        running = asyncio.create_task(machine.exec(["sleep", "600"]))
        process = await machine.spawn(["cat"], stdin=True)
        await machine.exec(["true"])
        await machine.terminate()
        error = await raises(SandboxLostError, running, "a running command")
        expect("terminated" in str(error), f"the error says why: {error}")
        await raises(SandboxLostError, process.wait(), "a spawned command")
        await process.close()


async def the_timeout_ends_a_machine(subject: Subject) -> None:
    async with subject.fresh(timeout=5.0) as machine:
        error = await raises(SandboxLostError, machine.exec(["sleep", "600"]), "past its timeout")
        expect("timeout" in str(error), f"the error says why: {error}")
        expect("timeout" in await _ends(subject, machine.id, within=30), "find says why")


async def an_idle_machine_ends_and_a_busy_one_does_not(subject: Subject) -> None:
    async with subject.fresh(idle_timeout=5.0) as machine:
        for _ in range(4):
            await asyncio.sleep(1.0)
            await machine.exec(["true"])
        await machine.exec(["sleep", "6"])
        said = await _ends(subject, machine.id, within=30)
        expect("idle" in said, f"find says how it ended: {said}")


async def a_machine_can_be_found_from_this_process(subject: Subject) -> None:
    async with subject.fresh(note="a note", env={"CONTRACT_A": "kept"}) as machine:
        await machine.write_file("file", b"content")
        found = await subject.provider.find(machine.id)
        equal((found.id, found.note), (machine.id, "a note"), "id and note")
        equal(found.layout, machine.layout, "layout")
        equal(await found.read_file("file"), b"content", "content")
        equal((await sh(found, "echo $CONTRACT_A")).stdout, b"kept\n", "environment")


async def a_machine_can_be_adopted_from_another_process(subject: Subject) -> None:
    first = await subject.controller(_START, "5", "detach")
    second = None
    try:
        machine_id = await first.line()
        equal(await first.finish(), 0, "exit of the first controller")
        expect(await _is_listed(subject, machine_id), "a detached machine outlives its controller")
        second = await subject.controller(_ADOPT, machine_id)
        equal(await second.line(), "hello", "what the first controller had written")
        await second.kill()
        said = await _ends(subject, machine_id, within=30)
        expect("controller" in said, f"an adopted machine ends with its controller: {said}")
    finally:
        for controller in (first, second):
            if controller is not None:
                await controller.kill()


async def a_machine_with_two_holders_ends_with_the_last(subject: Subject) -> None:
    first = await subject.controller(_START, "60")
    try:
        machine_id = await first.line()
        machine = await subject.provider.find(machine_id)
        await first.kill()
        await asyncio.sleep(0.5)
        equal(
            await machine.read_file("left-behind"), b"hello", "content, read by the second holder"
        )
        await machine.terminate()
    finally:
        await first.kill()


async def a_killed_controller_takes_its_machine_along(subject: Subject) -> None:
    await _ends_with_its_controller(subject, _START, "5")


async def _ends_with_its_controller(subject: Subject, *arguments: str) -> None:
    first = await subject.controller(*arguments)
    try:
        machine_id = await first.line()
        expect(await _is_listed(subject, machine_id), "the machine is not listed")
        await first.kill()
        said = await _ends(subject, machine_id, within=30)
        expect("controller" in said, f"find says how it ended: {said}")
    finally:
        await first.kill()


async def a_silent_controller_loses_its_lease(subject: Subject) -> None:
    first = await subject.controller(_START, "5")
    try:
        machine_id = await first.line()
        first.signal(signal.SIGSTOP)
        said = await _ends(subject, machine_id, within=30)
        expect("lease" in said, f"find says how it ended: {said}")
    finally:
        await first.kill()


async def a_detached_machine_needs_no_controller(subject: Subject) -> None:
    first = await subject.controller(_START, "5", "detach")
    try:
        machine_id = await first.line()
        await first.kill()
        await asyncio.sleep(6.0)

        async def alone() -> bool:
            statuses = [s for s in await subject.provider.list() if s.id == machine_id]
            equal(len(statuses), 1, "entries in the listing after its lease")
            expect(statuses[0].detached, f"the listing says that it is detached: {statuses[0]}")
            return not statuses[0].controller_alive

        await eventually(alone, "the listing says that nobody holds it")
        machine = await subject.provider.find(machine_id)
        await machine.terminate()
    finally:
        await first.kill()


_TICK = """
import time
kept = []
while True:
    kept.append(time.monotonic())
    with open("ticks", "a") as file:
        file.write(f"{kept[-1]} {len(kept)}\\n")
    time.sleep(0.02)
"""
"""Writes the time and a counter to a file. The counter exists only in the program's memory."""


async def pausing_stops_all_work_and_resuming_goes_on(subject: Subject) -> None:
    async with subject.fresh(idle_timeout=5.0) as machine:
        ticking = await machine.spawn([machine.layout.python, "-c", _TICK])
        try:

            async def ticks() -> list[list[float]]:
                lines = (await machine.read_file("ticks")).splitlines()
                return [[float(word) for word in line.split()] for line in lines[:-1]]

            async def has_begun() -> bool:
                return (await machine.exec(["test", "-s", "ticks"])).exit_code == 0

            await eventually(has_begun, "the program runs")
            await machine.pause()
            await machine.pause()
            began = time.monotonic()
            statuses = [s for s in await subject.provider.list() if s.id == machine.id]
            expect(statuses[0].paused, f"the listing says that it is paused: {statuses[0]}")
            await raises(SandboxPausedError, machine.exec(["true"]), "a command meanwhile")
            await raises(SandboxPausedError, machine.read_file("ticks"), "a file meanwhile")
            # Longer than the idle timeout, which does not apply to a paused machine.
            await asyncio.sleep(6.0)
            length = time.monotonic() - began
            await machine.resume()
            await machine.resume()
            paused = len(await ticks())

            async def goes_on() -> bool:
                return len(await ticks()) > paused + 5

            await eventually(goes_on, "the program goes on")
            seen = await ticks()
            gap = max(after[0] - before[0] for before, after in itertools.pairwise(seen))
            expect(gap >= length, f"nothing ran for {length:.1f} s; the longest gap is {gap:.1f} s")
            equal(
                [int(tick[1]) for tick in seen],
                list(range(1, len(seen) + 1)),
                "the counter in its memory",
            )
            statuses = [s for s in await subject.provider.list() if s.id == machine.id]
            expect(not statuses[0].paused, f"the listing says that it runs: {statuses[0]}")
        finally:
            await ticking.close()


async def a_paused_machine_can_be_terminated(subject: Subject) -> None:
    async with subject.fresh() as machine:
        await sh(machine, "sleep 600 >/dev/null 2>&1 &")
        await machine.pause()
        await machine.terminate()
        expect("terminated" in await _ends(subject, machine.id, within=30), "find says so")


async def a_paused_machine_ends_with_its_controller(subject: Subject) -> None:
    await _ends_with_its_controller(subject, _START, "5", "pause")


async def memory_is_limited(subject: Subject) -> None:
    async with subject.fresh(memory=200 << 20) as machine:
        code = "x = []\nwhile True: x.append(bytearray(8 << 20))"
        attempt = machine.exec([machine.layout.python, "-c", code], timeout=60)
        error = await raises(SandboxLostError, attempt, "more memory than allowed")
        expect("memory limit" in str(error), f"the error says why: {error}")
        expect("memory limit" in await _ends(subject, machine.id, within=30), "find says why")


async def disk_is_limited(subject: Subject) -> None:
    async with subject.fresh(disk=30 << 20) as machine:
        await sh(machine, "head -c 5000000 /dev/zero > fits")
        equal((await machine.stat("fits")).size, 5_000_000, "what fits can be written")

        async def fill() -> None:
            for number in range(1000):
                await sh(machine, f"head -c 4000000 /dev/zero > {machine.layout.tmp}/{number}")
                await asyncio.sleep(0.02)

        error = await raises(SandboxLostError, fill(), "more bytes than allowed")
        expect("disk limit" in str(error), f"the error says why: {error}")


async def processes_are_limited(subject: Subject) -> None:
    async with subject.fresh() as machine:
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
        with contextlib.suppress(SandboxLostError):
            result = await machine.exec([machine.layout.python, "-c", bomb], timeout=3)
            expect(result.timed_out, "the bomb was stopped by its timeout")
            equal((await machine.exec(["echo", "alive"])).stdout, b"alive\n", "afterwards")


CHECKS = checks_in(globals())
