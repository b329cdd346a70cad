"""Checks of running commands, and of how they and their children end."""

import asyncio
import errno
import os
import signal
from pathlib import Path

from seer.errors import RemoteFileError, SandboxLostError, SandboxStateError
from seer.providers import Machine, Process, TerminalSize
from seer.testing.provider_contract._subject import (
    Subject,
    checks_in,
    equal,
    eventually,
    expect,
    is_running,
    python,
    raises,
    sh,
)


async def exec_gives_output_and_exit_code(subject: Subject) -> None:
    result = await sh(await subject.machine(), "echo out; echo err >&2; exit 7")
    equal(result.stdout, b"out\n", "standard output")
    equal(result.stderr, b"err\n", "standard error")
    equal(result.exit_code, 7, "exit code")
    expect(not result.timed_out and not result.truncated, "neither timed out nor truncated")


async def death_by_a_signal_is_a_negative_exit_code(subject: Subject) -> None:
    result = await sh(await subject.machine(), "kill -KILL $$")
    equal(result.exit_code, -signal.SIGKILL, "exit code")


async def a_missing_program_is_an_error_with_errno(subject: Subject) -> None:
    machine = await subject.machine()
    for program in ("/no/such/program", "no-such-program"):
        error = await raises(RemoteFileError, machine.exec([program]), program)
        equal(error.errno, errno.ENOENT, f"errno for {program!r}")
        equal(error.filename, program, "file name")


async def a_program_that_may_not_run_is_an_error_with_errno(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.write_file("plain.txt", b"not a program\n", mode=0o644)
    path = f"{machine.layout.workdir}/plain.txt"
    error = await raises(RemoteFileError, machine.exec([path]), "a file without the x bit")
    equal(error.errno, errno.EACCES, "errno")


async def a_missing_working_folder_is_an_error_with_errno(subject: Subject) -> None:
    machine = await subject.machine()
    error = await raises(RemoteFileError, machine.exec(["true"], cwd="/no/such"), "missing cwd")
    equal(error.errno, errno.ENOENT, "errno")


async def commands_start_in_the_working_folder(subject: Subject) -> None:
    machine = await subject.machine()
    equal((await sh(machine, "pwd")).stdout.decode().strip(), machine.layout.workdir, "pwd")
    await machine.make_dir("somewhere/below")
    below = await machine.exec(["pwd"], cwd="somewhere/below")
    wanted = f"{machine.layout.workdir}/somewhere/below"
    equal(below.stdout.decode().strip(), wanted, "a relative cwd starts at the working folder")


async def arguments_arrive_as_they_are(subject: Subject) -> None:
    words = ["", " ", "a b", "'\"`$HOME\\", "*", "line\nline", "ünï→", "-n", "\udcff\udc80"]
    code = "import os, sys; print([os.fsencode(a) for a in sys.argv[1:]])"
    out = await python(await subject.machine(), code, *words)
    equal(out.decode().strip(), repr([os.fsencode(word) for word in words]), "arguments")


async def long_arguments_arrive_whole(subject: Subject) -> None:
    code = "import sys; print(len(sys.argv[1]), len(sys.argv))"
    out = await python(await subject.machine(), code, "x" * 100_000, *["y"] * 2000)
    equal(out.decode().strip(), "100000 2002", "lengths")


async def arguments_that_are_too_long_are_an_error_with_errno(subject: Subject) -> None:
    machine = await subject.machine()
    for argv in (["true", "x" * 200_000], ["true", *["y" * 100_000] * 100]):
        error = await raises(RemoteFileError, machine.exec(argv), "too much for a program")
        equal(error.errno, errno.E2BIG, "errno")


async def empty_and_impossible_arguments_are_refused(subject: Subject) -> None:
    machine = await subject.machine()
    await raises(ValueError, machine.exec([]), "no arguments at all")
    await raises(ValueError, machine.exec(["true", "a\0b"]), "a NUL character")
    await raises(ValueError, machine.exec(["true"], env={"A": "\0"}), "a NUL in the environment")


async def the_environment_of_a_call_adds_to_the_machines(subject: Subject) -> None:
    async with subject.fresh(env={"CONTRACT_A": "machine", "CONTRACT_B": "machine"}) as machine:
        result = await sh(machine, "echo $CONTRACT_A $CONTRACT_B", env={"CONTRACT_B": "call x"})
        equal(result.stdout, b"machine call x\n", "environment")
        result = await sh(machine, "echo $CONTRACT_B")
        equal(result.stdout, b"machine\n", "a call's environment ends with the call")


async def the_hosts_environment_does_not_reach_the_machine(subject: Subject) -> None:
    os.environ["CONTRACT_HOST_ONLY"] = "leaked-from-the-host"
    try:
        async with subject.fresh() as machine:
            out = (await sh(machine, "env; cat /proc/1/environ 2>/dev/null")).stdout
            expect(b"leaked-from-the-host" not in out, "the host's environment is visible")
    finally:
        del os.environ["CONTRACT_HOST_ONLY"]


async def secrets_stand_on_no_command_line_and_in_no_file(subject: Subject) -> None:
    secret = "contract-secret-" + os.urandom(8).hex()
    async with subject.fresh(env={"CONTRACT_SECRET": secret}) as machine:
        equal((await sh(machine, "printf %s $CONTRACT_SECRET")).stdout, secret.encode(), "secret")
        seen = await python(
            machine,
            "import glob, sys\n"
            "for p in glob.glob('/proc/[0-9]*/cmdline'):\n"
            "    try: sys.stdout.buffer.write(open(p, 'rb').read())\n"
            "    except OSError: pass\n",
        )
        expect(secret.encode() not in seen, "the secret is on a command line in the machine")
        if subject.provider.shares_host:
            where = await asyncio.to_thread(_search_host, secret.encode())
            expect(not where, f"the secret is visible on the host: {where}")


def _search_host(secret: bytes) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if secret in entry.read_bytes():
                found.append(str(entry))
        except OSError:
            continue
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        root = os.environ.get(variable)
        # Other tests create and remove folders there at the same time; `walk` ignores that.
        for folder, _, names in os.walk(Path(root, "seer")) if root else ():
            for path in (Path(folder, name) for name in names):
                try:
                    small = path.is_file() and path.stat().st_size < 1 << 20
                    if small and secret in path.read_bytes():
                        found.append(str(path))
                except OSError:
                    continue
    return found


async def standard_input_is_empty_unless_given(subject: Subject) -> None:
    result = await sh(await subject.machine(), "wc -c")
    equal(result.stdout.strip(), b"0", "bytes of standard input")


async def standard_input_arrives_whole(subject: Subject) -> None:
    data = os.urandom(1 << 20) * 8
    result = await (await subject.machine()).exec(["cat"], stdin=data, timeout=60)
    expect(result.stdout == data, f"{len(result.stdout)} of {len(data)} bytes came back")


async def input_that_nobody_reads_does_not_hang(subject: Subject) -> None:
    result = await (await subject.machine()).exec(["true"], stdin=b"x" * (4 << 20), timeout=30)
    equal((result.exit_code, result.timed_out), (0, False), "exit")


async def binary_output_arrives_exactly(subject: Subject) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)"
    equal(await python(await subject.machine(), code), bytes(range(256)) * 100, "bytes")


async def large_output_arrives_whole(subject: Subject) -> None:
    size = subject.large
    code = (
        "import sys\n"
        "for i in range(int(sys.argv[1]) // 65536):\n"
        "    sys.stdout.buffer.write(bytes([i % 251]) * 65536)"
    )
    out = await python(await subject.machine(), code, str(size))
    wanted = b"".join(bytes([i % 251]) * 65536 for i in range(size // 65536))
    expect(out == wanted, f"{len(out)} of {len(wanted)} bytes, or wrong bytes")


async def output_beyond_the_capture_limit_is_cut_with_a_mark(subject: Subject) -> None:
    seen = 0

    def count(stream: str, data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    result = await (await subject.machine()).exec(
        ["head", "-c", "100000", "/dev/zero"], capture_limit=1000, on_output=count
    )
    equal(result.exit_code, 0, "the command still runs to its end")
    expect(result.truncated and result.stdout.startswith(bytes(1000)), "kept the beginning")
    expect(b"cut here" in result.stdout[1000:], "a mark says that it was cut")
    equal(seen, 100000, "bytes that the callback saw")


async def output_streams_while_the_command_runs(subject: Subject) -> None:
    process = await (await subject.machine()).spawn(
        ["/bin/sh", "-c", "echo first; read line; echo got $line"], stdin=True
    )
    output = process.output()
    equal(await anext(output), ("stdout", b"first\n"), "output before the end")
    await process.write(b"word\n")
    equal(await anext(output), ("stdout", b"got word\n"), "output after input")
    equal(await process.wait(), 0, "exit code")
    await process.close()


async def a_command_waits_for_its_slow_reader(subject: Subject) -> None:
    process = await (await subject.machine()).spawn(["cat", "/dev/zero"])
    output = process.output()
    await anext(output)
    # Without a reader, the command must block at a full buffer, and not fill our memory.
    await asyncio.sleep(0.2)
    await process.kill()
    rest = 0
    async for _, data in output:
        rest += len(data)
    expect(rest < 64 << 20, f"{rest} bytes were buffered while nothing read the output")
    equal(await process.wait(), -signal.SIGKILL, "exit code")
    await process.close()


async def writing_without_standard_input_is_refused(subject: Subject) -> None:
    process = await (await subject.machine()).spawn(["sleep", "600"])
    await raises(SandboxStateError, process.write(b"x"), "no standard input")
    await process.close()


async def many_commands_run_at_once(subject: Subject) -> None:
    machine = await subject.machine()
    results = await asyncio.gather(*(sh(machine, f"sleep 0.1; echo {i}") for i in range(40)))
    equal([int(result.stdout) for result in results], list(range(40)), "answers")


async def a_long_command_does_not_hold_up_others(subject: Subject) -> None:
    machine = await subject.machine()
    process = await machine.spawn(["sleep", "600"])
    result = await machine.exec(["echo", "quick"], timeout=20)
    equal(result.stdout, b"quick\n", "output")
    await process.close()


async def the_layouts_python_runs(subject: Subject) -> None:
    out = await python(
        await subject.machine(), "import sys, json, ssl, sqlite3; print(sys.version)"
    )
    expect(out.startswith(b"3."), f"a Python 3, not {out!r}")


async def a_terminal_is_a_terminal(subject: Subject) -> None:
    script = "test -t 0 && test -t 1 && stty size; read x; stty size; echo got $x"
    process = await (await subject.machine()).spawn(
        ["/bin/sh", "-c", script], pty=TerminalSize(40, 100)
    )
    output = process.output()
    seen = (await anext(output))[1]
    expect(seen.startswith(b"40 100"), f"the size asked for, not {seen!r}")
    await process.resize(TerminalSize(50, 120))
    await process.write(b"line\n")
    async for _, data in output:
        seen += data
    expect(b"50 120" in seen, f"the new size, not {seen!r}")
    expect(b"got line" in seen, f"what was typed, not {seen!r}")
    equal(await process.wait(), 0, "exit code")
    await process.close()


async def resizing_what_is_no_terminal_is_harmless(subject: Subject) -> None:
    process = await (await subject.machine()).spawn(["cat"], stdin=True)
    await process.resize(TerminalSize(50, 120))
    await process.write(b"still here")
    await process.close_stdin()
    output = [data async for _, data in process.output()]
    equal((b"".join(output), await process.wait()), (b"still here", 0), "output and exit code")
    await process.close()


async def control_c_in_a_terminal_interrupts(subject: Subject) -> None:
    process = await (await subject.machine()).spawn(["cat"], pty=TerminalSize())
    await process.write(b"word\n")
    seen = b""
    async for _, data in process.output():
        seen += data
        # The text appears twice: as the terminal's echo, and as the program's output.
        if seen.count(b"word") == 2:
            break
    await process.write(b"\x03")
    equal(await process.wait(), -signal.SIGINT, "exit code")
    await process.close()


async def a_timeout_keeps_the_output_so_far(subject: Subject) -> None:
    result = await sh(await subject.machine(), "echo before; sleep 600; echo after", seconds=2.0)
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
    # Run all at once, so that each has time to print its process id even on a busy machine.
    results = await asyncio.gather(
        *(sh(machine, script, seconds=4.0) for script in _RUNAWAYS.values())
    )
    for name, result in zip(_RUNAWAYS, results, strict=True):
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
        # Without a redirect, the loop keeps the command's output open and writes to it.
        loop = "i=0; while [ $i -lt 3000 ]; do echo tick; sleep 0.02; i=$((i+1)); done"
        result = await sh(machine, f"({loop}) {redirect} & echo pid $!", seconds=20)
        expect(not result.timed_out, "the command did not end while a child held its output")
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


CHECKS = checks_in(globals())
