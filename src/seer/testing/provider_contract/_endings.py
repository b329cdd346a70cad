"""Checks of how commands end: at a timeout, on a signal, and together with their children."""

import asyncio
import signal

from seer.errors import SandboxLostError, SandboxStateError
from seer.providers import Machine, Process
from seer.testing.provider_contract._subject import (
    Subject,
    equal,
    eventually,
    expect,
    is_running,
    raises,
    sh,
)


async def a_timeout_keeps_the_output_so_far(subject: Subject) -> None:
    result = await sh(await subject.machine(), "echo before; sleep 600; echo after", seconds=0.5)
    expect(result.timed_out, "the result says that it timed out")
    equal(result.stdout, b"before\n", "partial output")
    expect(result.exit_code < 0, f"exit code {result.exit_code} should be that of a signal")


_RUNAWAYS = {
    "child": "sleep 600 & echo $!; wait",
    "setsid": "setsid sh -c 'echo $$; exec sleep 600' & wait",
    "double fork": "(setsid sh -c 'echo $$; exec sleep 600' &) ; sleep 600",
    "clean environment": "env -i setsid /bin/sh -c 'echo $$; exec sleep 600' & wait",
    "stopped": "sh -c 'echo $$; kill -STOP $$; sleep 600' & wait",
    "deaf": "sh -c 'trap \"\" TERM HUP INT; echo $$; while :; do sleep 1; done' & wait",
}


async def a_timeout_kills_the_whole_tree(subject: Subject) -> None:
    machine = await subject.machine()
    for name, script in _RUNAWAYS.items():
        result = await sh(machine, script, seconds=1.0)
        expect(result.timed_out, f"{name}: timed out")
        pid = int(result.stdout.split()[0])
        expect(not await is_running(machine, pid), f"{name}: process {pid} survived the timeout")


async def _spawn_sleeper(machine: Machine) -> tuple[Process, int]:
    process = await machine.spawn(["/bin/sh", "-c", _RUNAWAYS["double fork"]])
    _, data = await anext(process.output())
    return process, int(data)


async def killing_a_command_kills_the_whole_tree(subject: Subject) -> None:
    machine = await subject.machine()
    process, pid = await _spawn_sleeper(machine)
    await process.kill()
    expect(not await is_running(machine, pid), f"process {pid} survived")
    equal(await process.wait(), -signal.SIGKILL, "exit code")
    await process.kill()
    await process.close()


async def closing_a_command_kills_the_whole_tree(subject: Subject) -> None:
    machine = await subject.machine()
    process, pid = await _spawn_sleeper(machine)
    await process.close()

    async def gone() -> bool:
        return not await is_running(machine, pid)

    await eventually(gone, "the closed command's tree is gone")
    await raises(SandboxLostError, process.wait(), "waiting for a closed command")


async def cancelling_exec_kills_the_whole_tree(subject: Subject) -> None:
    machine = await subject.machine()
    started = asyncio.Event()
    seen: list[bytes] = []

    def note(stream: str, data: bytes) -> None:
        seen.append(data)
        started.set()

    argv = ["/bin/sh", "-c", _RUNAWAYS["double fork"]]
    task = asyncio.create_task(machine.exec(argv, on_output=note))
    async with asyncio.timeout(20):
        await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    pid = int(seen[0])

    async def gone() -> bool:
        return not await is_running(machine, pid)

    await eventually(gone, "the cancelled command's tree is gone")


async def what_runs_in_the_background_outlives_its_command(subject: Subject) -> None:
    machine = await subject.machine()
    for redirect in ("", ">/dev/null 2>&1"):
        # The first one keeps the command's output open and continues to write to it.
        loop = "i=0; while [ $i -lt 3000 ]; do echo tick; sleep 0.02; i=$((i+1)); done"
        result = await sh(machine, f"({loop}) {redirect} & echo pid $!", seconds=20)
        expect(not result.timed_out, "the command ended although a child held its output")
        pid = int(result.stdout.split(b"pid ")[1].split()[0])
        await asyncio.sleep(0.3)
        expect(await is_running(machine, pid), "the background process was killed")
        await sh(machine, f"kill -9 {pid}")


async def a_released_command_outlives_its_connection(subject: Subject) -> None:
    machine = await subject.machine()
    loop = ": >ticks; echo $$; while :; do echo tick; echo tick >>ticks; sleep 0.02; done"
    process = await machine.spawn(["/bin/sh", "-c", loop])
    pid = int((await anext(process.output()))[1].split()[0])
    await process.release()
    before = (await machine.stat("ticks")).size

    async def goes_on() -> bool:
        return (await machine.stat("ticks")).size > before + 20

    await eventually(goes_on, "the released command goes on")
    await sh(machine, f"kill -9 {pid}")

    async def gone() -> bool:
        return not await is_running(machine, pid)

    await eventually(gone, "the released command can be ended from within")
    process = await machine.spawn(["true"])
    await process.wait()
    await raises(SandboxStateError, process.release(), "releasing a command that has ended")


async def signals_reach_the_commands_group(subject: Subject) -> None:
    process = await (await subject.machine()).spawn(
        [
            "/bin/sh",
            "-c",
            "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done",
        ]
    )
    output = process.output()
    equal(await anext(output), ("stdout", b"ready\n"), "output")
    await process.signal(signal.SIGINT)
    equal(await anext(output), ("stdout", b"caught\n"), "output after the signal")
    equal(await process.wait(), 3, "exit code")
    await process.signal(signal.SIGINT)
    await process.close()


CHECKS = (
    a_timeout_keeps_the_output_so_far,
    a_timeout_kills_the_whole_tree,
    killing_a_command_kills_the_whole_tree,
    closing_a_command_kills_the_whole_tree,
    cancelling_exec_kills_the_whole_tree,
    what_runs_in_the_background_outlives_its_command,
    a_released_command_outlives_its_connection,
    signals_reach_the_commands_group,
)
