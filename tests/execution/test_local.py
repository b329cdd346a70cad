"""Local sessions beyond the contract: rich output, crashes, and a hostile kernel."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from seer.errors import ConfigError, StartError
from seer.execution import (
    ExecutionResult,
    LocalSession,
    RichOutput,
    acreate_local_session,
    create_local_session,
)
from seer.testing import on_loop
from seer.workspace import Library, Workspace

pytestmark = pytest.mark.full

LIBRARY = Library.from_code("helpers", "VALUE = 1\n")


@pytest.fixture
async def session(tmp_path: Path) -> AsyncGenerator[LocalSession]:
    async with await acreate_local_session(
        Workspace(libraries=[LIBRARY]), tmp_path / "work"
    ) as opened:
        yield opened


async def run(session: LocalSession, code: str) -> ExecutionResult:
    async with asyncio.timeout(120):
        return await session.aexec(code)


def test_it_works_from_plain_blocking_code(tmp_path: Path) -> None:
    with create_local_session(workspace_dir=tmp_path / "work", name="plain") as session:
        assert session.exec("6 * 7").value == "42"
        assert session.workspace_dir == tmp_path / "work"
        assert session.name == "plain"


def test_the_wait_for_packages_is_shown_when_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("seer.execution._machine.PACKAGES", ("ipykernel",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SEER_PROGRESS", "plain")
    with create_local_session(workspace_dir=tmp_path / "work", name="first"):
        assert re.fullmatch(r"session first: packages took [\d.]+ s\n", capsys.readouterr().err)
    with create_local_session(workspace_dir=tmp_path / "work", name="second"):
        assert capsys.readouterr().err == ""


async def test_a_plot_arrives_as_an_image(session: LocalSession) -> None:
    code = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    (image,) = (await run(session, code)).images
    assert image.mime == "image/png"
    assert image.width > 100
    assert not image.is_large


async def test_a_large_image_is_scaled_down_and_kept_whole_beside(session: LocalSession) -> None:
    code = (
        "from PIL import Image as I; from IPython.display import display\n"
        "display(I.effect_noise((3000, 1200), 90))"
    )
    result = await run(session, code)
    (image,) = result.images
    assert (image.width, image.height) == (1568, 627)
    (output,) = [o for o in result.outputs if isinstance(o, RichOutput)]
    assert len(output.data["image/png"]) > len(image.data)


async def test_declared_packages_are_there(session: LocalSession) -> None:
    code = "import numpy, pandas, scipy, matplotlib; print(numpy.arange(3).sum())"
    assert (await run(session, code)).stdout == "3\n"


async def test_what_the_start_leaves_out_is_there_for_the_agent(session: LocalSession) -> None:
    assert (await run(session, "import sys; print('debugpy' in sys.modules)")).stdout == "False\n"
    code = "import gc, debugpy; print(debugpy.__name__, gc.isenabled())"
    assert (await run(session, code)).stdout == "debugpy True\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os._exit(3)", "exited with code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "too much memory"),
    ],
)
async def test_a_crash_is_told_and_the_next_call_gets_a_fresh_kernel(
    session: LocalSession, code: str, told: str
) -> None:
    await run(session, "x = 1")
    result = await run(session, code)
    assert result.status == "died"
    assert result.error is not None
    assert result.error.name == "KernelDied"
    assert told in result.error.message
    result = await run(session, "print('x' in globals())")
    assert result.stdout == "False\n"
    assert any("fresh kernel" in note for note in result.notes)
    assert not (await run(session, "1")).notes


async def test_memory_beyond_the_limit_ends_the_kernel_and_not_the_session(
    tmp_path: Path,
) -> None:
    async with await acreate_local_session(
        workspace_dir=tmp_path / "work", memory=512 * 1024**2
    ) as session:
        result = await run(session, "x = [bytearray(50_000_000) for _ in range(100)]")
        assert result.status in ("died", "error")
        assert (await run(session, "print('alive')")).stdout == "alive\n"


async def test_a_machine_that_is_gone_is_replaced(session: LocalSession) -> None:
    await run(session, "open('kept.txt', 'w').write('here')")

    async def end_machine() -> None:
        prepared = await session._machines.prepared()  # pyright: ignore[reportPrivateUsage]
        await prepared.machine.terminate()

    await on_loop(end_machine())
    result = await run(session, "print(open('kept.txt').read())")
    assert result.stdout == "here\n"
    assert any("fresh kernel" in note for note in result.notes)


async def test_an_interrupt_at_any_moment_ends_the_code_and_spares_the_kernel(
    session: LocalSession,
) -> None:
    await run(session, "kept = 1")
    for number in range(40):
        # From before the kernel receives the code until it runs.
        result_id = await session.asubmit("for _ in range(10**9): pass")
        await asyncio.sleep(number % 8 * 0.002)
        assert await session.ainterrupt(result_id)
        async with asyncio.timeout(30):
            assert (await session.aresult(result_id, wait=None)).status == "interrupted"
    assert (await run(session, "kept")).value == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import ctypes; ctypes.CDLL(None).sleep(600)",
        "import ctypes; ctypes.PyDLL(None).sleep(600)",
        "import subprocess; subprocess.run(['sleep', '600'])",
        "input('?')",
    ],
)
async def test_code_that_waits_outside_of_python_can_be_interrupted(
    session: LocalSession, code: str
) -> None:
    result = await session.aexec(code, timeout=1.0)
    assert result.status in ("timeout", "error")
    assert not any("killed" in note for note in result.notes)
    assert (await run(session, "1 + 1")).value == "2"


async def test_a_hundred_megabytes_of_output_are_kept_whole(session: LocalSession) -> None:
    result = await run(session, "print('x' * 100_000_000)")
    assert result.ok
    assert len(result.text) < 30_000
    assert await session.aread_output(result.result_id, offset=99_999_998, length=10) == "xx\n"


async def test_an_output_beyond_all_bounds_is_left_out_with_a_note(session: LocalSession) -> None:
    code = "from IPython.display import HTML, display; display(HTML('x' * 40_000_000)); print('on')"
    result = await run(session, code)
    assert result.stdout == "on\n"
    assert any("larger than 16 MiB" in note for note in result.notes)


async def test_libraries_cannot_be_changed(session: LocalSession) -> None:
    code = "import helpers; open(helpers.__file__, 'w').write('VALUE = 2')"
    result = await run(session, code)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.name in ("PermissionError", "OSError")


async def test_nothing_of_seer_is_in_the_session(session: LocalSession) -> None:
    code = (
        "import importlib.util, sys, os\n"
        "print(importlib.util.find_spec('seer'))\n"
        "print([p for p in sys.path if 'seer' in p and not p.startswith('/seer/')])\n"
        "print(os.environ.get('HOME', ''))"
    )
    result = await run(session, code)
    assert result.stdout.split("\n")[:2] == ["None", "[]"]


async def test_init_code_runs_first_and_again_after_a_crash(tmp_path: Path) -> None:
    workspace = Workspace(custom_init_code="ready = 'yes'")
    async with await acreate_local_session(workspace, tmp_path / "work") as session:
        assert (await run(session, "print(ready)")).stdout == "yes\n"
        await run(session, "import os; os._exit(1)")
        assert (await run(session, "print(ready)")).stdout == "yes\n"


async def test_init_code_that_fails_is_told_with_the_first_result(tmp_path: Path) -> None:
    workspace = Workspace(custom_init_code="1 / 0")
    async with await acreate_local_session(workspace, tmp_path / "work") as session:
        result = await run(session, "1 + 1")
        assert result.value == "2"
        assert any("custom_init_code failed: ZeroDivisionError" in note for note in result.notes)


async def test_late_output_of_a_thread_belongs_to_its_own_execution(
    session: LocalSession,
) -> None:
    code = (
        "import threading, time\n"
        "go = threading.Event()\n"
        "t = threading.Thread(target=lambda: (go.wait(), print('late')))\n"
        "t.start()"
    )
    first = await run(session, code)
    second = await run(session, "go.set(); t.join(); print('second')")
    text = await session.aread_output(first.result_id)
    assert "late" in text + second.stdout
    assert "second" in second.stdout


async def test_output_of_forked_children_and_programs_arrives(session: LocalSession) -> None:
    code = (
        "import multiprocessing, os, subprocess, sys\n"
        "def work(n): print('child', n, flush=True)\n"
        "children = [multiprocessing.get_context('fork').Process(target=work, args=(n,))\n"
        "            for n in range(3)]\n"
        "for child in children: child.start()\n"
        "for child in children: child.join()\n"
        "subprocess.run(['echo', 'program']); os.system('echo shell >&2')\n"
        "print('parent')"
    )
    result = await run(session, code)
    assert result.ok
    async with asyncio.timeout(60):
        while result.stdout.count("child") < 3 or "program" not in result.stdout:
            result = await session.aresult(result.result_id)
    assert "parent\n" in result.stdout
    assert "shell\n" in result.stderr


async def test_async_code_and_magics_work(session: LocalSession) -> None:
    result = await run(session, "import asyncio\nawait asyncio.sleep(0)\nprint('async')")
    assert result.stdout == "async\n"
    assert "/work" in (await run(session, "%pwd")).value


@pytest.mark.parametrize(
    "attack",
    [
        # Forged messages on the kernel's own publishing socket.
        "k = get_ipython().kernel\n"
        "for kind in ('status', 'stream', 'error', 'display_data', 'nonsense'):\n"
        "    k.session.send(k.iopub_socket, kind, {'execution_state': 'idle', 'text': 3,\n"
        "        'data': {'image/png': 7}, 'traceback': 'x'}, parent=k.get_parent())\n",
        # Bytes that are no message at all.
        "k = get_ipython().kernel\n"
        "for frames in ([b''], [b'x'] * 100, [b'<IDS|MSG>', b'', b'{', b'{', b'{', b'{']):\n"
        "    k.iopub_thread.send_multipart(frames)\n",
        # Deep nesting that would exhaust a recursive reader.
        "k = get_ipython().kernel\n"
        "deep = []\n"
        "for _ in range(900): deep = [deep]\n"
        "k.session.send(k.iopub_socket, 'display_data', {'data': {'text/plain': deep}})\n",
        # Sockets replaced by links, folders and pipes.
        "import os, glob\n"
        "for path in glob.glob('/run/seer/**/z-*', recursive=True):\n"
        "    os.unlink(path); os.symlink('/etc/passwd', path)\n",
    ],
)
async def test_a_kernel_that_forges_messages_harms_only_itself(
    session: LocalSession, attack: str
) -> None:
    await run(session, attack)
    result = await run(session, "print('on')")
    assert result.stdout == "on\n"


@pytest.mark.parametrize("name", ["", "x" * 81, "new\nline"])
async def test_names_that_cannot_be_shown_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name="):
        await acreate_local_session(workspace_dir=tmp_path, name=name)


async def test_folders_that_no_agent_should_own_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused: Sequence[Path] = (Path.home(), Path("/"), tmp_path / "file")
    for folder in refused:
        with pytest.raises(ConfigError, match="workspace_dir="):
            await acreate_local_session(workspace_dir=folder)


async def test_a_kernel_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(name="a", files={"a.py": b"", "sitecustomize.py": b""})
    broken = Library(name="b", files={"b.py": b"", "b/ipykernel_launcher.py": b""})
    monkeypatch.setattr("seer.execution._machine.PACKAGES", ("numpy",))
    with pytest.raises(StartError, match="ipykernel"):
        await acreate_local_session(Workspace(libraries=[library, broken]), tmp_path / "work")


def test_no_argument_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with create_local_session() as one, create_local_session() as two:
        assert one.name != two.name
        assert one.workspace_dir != two.workspace_dir
        assert one.workspace_dir.parent == two.workspace_dir.parent == tmp_path / "workspace"
        assert one.exec("open('file', 'w').write('x'); 1").value == "1"
        assert (tmp_path / "workspace" / one.workspace_dir.name / "file").read_text() == "x"


def test_a_default_folder_stays_only_if_it_holds_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with create_local_session() as session:
        assert session.exec("1").value == "1"
    assert not (tmp_path / "workspace").exists()
    with create_local_session(workspace_dir=tmp_path / "chosen"):
        pass
    assert (tmp_path / "chosen").is_dir()
    (tmp_path / "workspace").mkdir()  # the user's own
    with create_local_session(), create_local_session() as session:
        session.write_file("kept.txt", b"x")
    (kept,) = (tmp_path / "workspace").iterdir()
    assert (kept / "kept.txt").read_bytes() == b"x"
    (kept / "kept.txt").unlink()
    kept.rmdir()
    with create_local_session():
        pass
    assert not list((tmp_path / "workspace").iterdir())


def command_lines() -> list[bytes]:
    """What every user of the host can read about its processes."""
    found: list[bytes] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((entry / "cmdline").read_bytes())
    return found


async def test_the_kernels_key_can_be_read_by_no_other_user(session: LocalSession) -> None:
    key = session._signer.key.encode()  # pyright: ignore[reportPrivateUsage]
    assert not [line for line in await asyncio.to_thread(command_lines) if key in line]
    asked = await session.aexec("import subprocess; subprocess.run(['cat'], timeout=20).returncode")
    assert asked.value == "0"  # and its standard input is at its end
