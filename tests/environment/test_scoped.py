"""A scoped sandbox serves the chosen functions, in four forms, and nothing else."""

import asyncio
import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.errors import (
    BudgetExceededError,
    CallLostError,
    ConfigError,
    GateError,
    InterfaceDiedError,
    ProtocolError,
    RemoteError,
    SandboxLostError,
    SandboxStateError,
    ServeError,
    UnknownFunctionError,
)
from seer.rpc import Budget
from seer.testing import make_tiny_model
from seer.workspace import Library, Skill
from tests.waiting import wait_until

pytestmark = pytest.mark.full

PLAIN = SandboxConfig(gpu=None, provider="local")

INTERFACE = '''"""Tools for counting."""

counts: dict[str, int] = {}


@expose
def count(word: str, by: int = 1) -> int:
    """Count a word.

    Args:
        word: What to count.
        by: How much it counts.
    """
    counts[word] = counts.get(word, 0) + by
    return counts[word]


@expose
def fail(message: str) -> None:
    """Raise an error."""
    raise ValueError(message)


def secret() -> str:
    return "never"
'''


@pytest.fixture(scope="module")
def scoped() -> Iterator[ScopedSandbox]:
    with ScopedSandbox(PLAIN) as sandbox:
        yield sandbox


@pytest.fixture
def interface(tmp_path: Path) -> Path:
    file = tmp_path / "interface.py"
    file.write_text(INTERFACE)
    return file


def served(scoped: ScopedSandbox, file: Path, name: str, **options: Any) -> Any:
    """The interface as a live module in this process."""
    return scoped.serve(file, "library", name, **options).connect()


def traceback_of(error: BaseException) -> str:
    assert isinstance(error, RemoteError)
    return error.remote_traceback


def test_modules_beside_the_file_travel_with_it(scoped: ScopedSandbox, tmp_path: Path) -> None:
    file = tmp_path / "interface.py"
    file.write_text("from ._beside import double\n\nexpose(double)\n")
    beside = tmp_path / "_beside.py"
    beside.write_text("def double(x: int) -> int:\n    return 2 * x\n")
    (tmp_path / "main.py").write_text("ANSWER = 42\n")
    library = served(scoped, file, "beside")
    assert library.double(2) == 4
    assert "main.py" not in scoped.exec("ls $(dirname $(find / -name _beside.py 2>/dev/null))")
    beside.write_text("def double(x: int) -> int:\n    return 20 * x\n")
    scoped.reload("beside")
    assert library.double(2) == 40


def test_library_calls_keep_module_state(scoped: ScopedSandbox, interface: Path) -> None:
    tools = served(scoped, interface, "state")
    assert [tools.count("a"), tools.count("a", by=5)] == [1, 6]


def test_a_function_that_does_not_exist_is_refused_in_the_librarys_name(
    scoped: ScopedSandbox, interface: Path
) -> None:
    tools = served(scoped, interface, "counters")
    told = "^library 'counters' has no function 'cuont'; it has: .*count, .*fail"
    with pytest.raises(AttributeError, match=told):
        tools.cuont("a")
    assert not hasattr(tools, "__path__")


def test_two_callers_share_the_module_but_not_their_budget(
    scoped: ScopedSandbox, interface: Path
) -> None:
    library = scoped.serve(interface, "library", "shared")
    one: Any = library.connect()
    two: Any = library.connect()
    assert [one.count("x"), two.count("x")] == [1, 2]


def test_remote_exceptions_are_the_builtin_ones(scoped: ScopedSandbox, interface: Path) -> None:
    tools = served(scoped, interface, "raising")
    with pytest.raises(ValueError, match="on purpose") as caught:
        tools.fail("on purpose")
    assert ", in fail\nValueError: on purpose" in traceback_of(caught.value)


def test_tracebacks_stay_on_the_server_when_they_are_off(
    scoped: ScopedSandbox, interface: Path
) -> None:
    tools = served(scoped, interface, "quiet", tracebacks=False)
    with pytest.raises(ValueError) as caught:
        tools.fail("on purpose")
    assert traceback_of(caught.value) == ""


def test_a_caller_holds_no_more_memory_than_the_owner_allows(
    scoped: ScopedSandbox, interface: Path
) -> None:
    tools = served(scoped, interface, "bounded", caller_memory="1MiB")
    assert tools.count("a") == 1
    with pytest.raises(ProtocolError, match="this caller may hold 1048576 more"):
        tools.count("a" * (2 << 20))
    with pytest.raises(ConfigError, match="caller_memory"):
        scoped.serve(interface, "library", "unbounded", caller_memory="much")


def test_what_is_not_exposed_does_not_exist(scoped: ScopedSandbox, interface: Path) -> None:
    tools = served(scoped, interface, "scope")
    assert not hasattr(tools, "secret")
    with pytest.raises(UnknownFunctionError, match="secret"):
        tools._gate.call("secret")


def test_one_schema_feeds_prompt_skill_and_library(scoped: ScopedSandbox, interface: Path) -> None:
    library = scoped.serve(interface, "library", "forms")
    prompt = scoped.serve(interface, "prompt", "forms")
    skill = scoped.serve(interface, "skill", "forms")
    assert "def count(word: str, by: int = 1) -> int" in prompt
    assert library.docs == prompt and isinstance(skill, Skill)
    assert "def count" in skill.files["SKILL.md"].decode()


def test_name_defaults_to_the_files_stem(scoped: ScopedSandbox, interface: Path) -> None:
    assert scoped.serve(interface).name == "interface"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_can_call_a_function(scoped: ScopedSandbox, interface: Path) -> None:
    library = scoped.serve(interface, "library", "curled")
    tools: Any = library.connect()
    tools.count("before")
    path = tools._gate.address.removeprefix("path:")
    ran = subprocess.run(
        ["curl", "-sS", "--unix-socket", path, "http://gate/v1/call/count"]
        + ["-d", '{"args": ["before"]}'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"result": 2' in ran.stdout or '"result":2' in ran.stdout


@pytest.mark.parametrize(
    ("source", "words", "line"),
    [
        ("import no_such_package\n@expose\ndef f() -> int: ...\n", "no_such_package", 1),
        ("@expose\ndef f(x) -> int:\n    return 1\n", "'x' has no type hint", 1),
        ("def f() -> int:\n    return 1\n", "expose", None),
        ("x = 1 / 0\n", "ZeroDivisionError", 1),
        ("def f(:\n", "syntax", 1),
        ("@expose\ndef f() -> int: ...\n@expose\ndef f() -> int: ...\n", "twice", 3),
    ],
    ids=["import", "hint", "nothing", "module", "syntax", "twice"],
)
def test_serve_errors_name_file_line_and_reason(
    scoped: ScopedSandbox, tmp_path: Path, source: str, words: str, line: int | None
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    with pytest.raises(ServeError, match=words) as caught:
        scoped.serve(file)
    if line is not None:
        assert (caught.value.file, caught.value.line) == (str(file), line)
        assert "/run/seer" not in str(caught.value)


def test_missing_file_and_bad_arguments_are_clear(scoped: ScopedSandbox, interface: Path) -> None:
    with pytest.raises(ServeError, match="no such file"):
        scoped.serve(interface.with_name("nowhere.py"))
    with pytest.raises(ConfigError, match="identifier"):
        scoped.serve(interface, "library", "not a name")
    with pytest.raises(ConfigError, match="expose_as"):
        scoped.serve(interface, "soap")  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(SandboxStateError, match="not started"):
        ScopedSandbox(PLAIN).serve(interface)


async def test_serving_the_same_file_twice_at_once_loads_it_once(
    scoped: ScopedSandbox, interface: Path
) -> None:
    forms = ("library", "library", "prompt")
    first, second, prompt = await asyncio.gather(
        *(scoped.aserve(interface, form, "at_once") for form in forms)
    )
    assert isinstance(first, Library)
    assert isinstance(second, Library)
    assert "count" in str(prompt)
    one: Any = first.connect()
    two: Any = second.connect()
    assert [one.count("x"), two.count("x")] == [1, 2]


@pytest.mark.parametrize("name", ["class", "json", "my-tools", "", "1st", 3])
def test_a_name_that_cannot_be_imported_is_refused_before_anything_is_loaded(
    scoped: ScopedSandbox, tmp_path: Path, name: Any
) -> None:
    file = tmp_path / "interface.py"
    file.write_text("raise ValueError('loaded')")
    with pytest.raises(ConfigError, match=re.escape(f"serve(name=)={name!r}")):
        scoped.serve(file, name=name)
    assert name not in scoped.served


def test_same_name_for_another_file_is_refused(
    scoped: ScopedSandbox, interface: Path, tmp_path: Path
) -> None:
    scoped.serve(interface, "library", "taken")
    other = tmp_path / "other.py"
    other.write_text(INTERFACE)
    with pytest.raises(ConfigError, match="already served"):
        scoped.serve(other, "library", "taken")


def test_reload_takes_the_new_code_and_keeps_what_is_kept(
    scoped: ScopedSandbox, tmp_path: Path
) -> None:
    file = tmp_path / "changing.py"
    source = (
        "import os\nfrom seer.rpc import keep\n"
        "loaded = keep('model', lambda: os.urandom(8).hex())\n"
        "@expose\ndef version() -> list[str]:\n    return ['{}', loaded]\n"
    )
    file.write_text(source.format("one"))
    tools = served(scoped, file, "changing")
    before = tools.version()
    file.write_text(source.format("two"))
    scoped.reload("changing")
    after = tools.version()
    assert (before[0], after[0]) == ("one", "two") and before[1] == after[1]
    file.write_text("def (")
    with pytest.raises(ServeError):
        scoped.reload("changing")
    assert tools.version() == after


def test_budget_of_the_interface_is_enforced(scoped: ScopedSandbox, interface: Path) -> None:
    tools = served(scoped, interface, "metered", budget=Budget(calls=2))
    tools.count("a")
    tools.count("a")
    with pytest.raises(BudgetExceededError, match="calls"):
        tools.count("a")


DYING = """import os

@expose
def small(x: int) -> int:
    return x

@expose
def eat(mib: int) -> int:
    return len(bytearray(mib << 20))

@expose
def kill(which: str) -> None:
    os.kill(os.getpid() if which == "interface" else os.getppid(), 9)
"""


def kill(tools: Any, which: str) -> None:
    """Kill the interface's process or its supervisor, and wait until nothing answers."""
    with contextlib.suppress(CallLostError):
        tools.kill(which)

    def is_gone() -> bool:
        try:
            tools.small(1)
        except GateError:
            return True
        return False

    wait_until(is_gone, "the interface's end")


@pytest.mark.parametrize("which", ["interface", "supervisor"])
def test_a_dead_interface_is_served_again_and_every_way_to_it_says_how_it_died(
    scoped: ScopedSandbox, tmp_path: Path, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "dying.py"
    file.write_text(DYING)
    name = f"dying_{which}"
    library = scoped.serve(file, "library", name)
    tools: Any = library.connect()
    kill(tools, which)
    ways: list[Callable[[], Any]] = [
        lambda: tools.small(1),
        lambda: cast("Any", library.connect()).small(1),
        lambda: scoped.reload(name),
    ]
    if which == "supervisor":
        ways.append(lambda: scoped.usage(name))
    for way in ways:
        with pytest.raises(InterfaceDiedError, match=r"is not running: .*(SIGKILL|exit code -9)"):
            way()
    assert scoped.exec("echo alive") == "alive\n"
    again: Any = scoped.serve(file, "library", name).connect()
    assert "loading it again" in caplog.text
    assert again.small(2) == 2
    # Other options are allowed once nothing of the old interface runs any more.
    kill(again, which)
    other: Any = scoped.serve(file, "library", name, budget=Budget(calls=5)).connect()
    assert other.small(3) == 3


def is_lost(sandbox: ScopedSandbox) -> bool:
    try:
        sandbox.exec("true")
    except SandboxLostError:
        return True
    return False


def test_every_way_to_an_interface_names_the_memory_limit_that_ended_it(tmp_path: Path) -> None:
    file = tmp_path / "eating.py"
    file.write_text(DYING)
    config = SandboxConfig(gpu=None, provider="local", memory="300MiB")
    with ScopedSandbox(config) as sandbox:
        library = sandbox.serve(file)
        tools: Any = library.connect()
        with pytest.raises(CallLostError, match="out of memory|memory limit of 300"):
            tools.eat(2000)
        wait_until(lambda: is_lost(sandbox), "the sandbox's end")
        ways: list[Callable[[], Any]] = [
            lambda: tools.small(1),
            lambda: asyncio.run(tools._gate.acall("small", (1,))),
            library.connect,
            lambda: sandbox.usage("eating"),
            lambda: sandbox.serve(file),
            lambda: sandbox.reload("eating"),
        ]
        for way in ways:
            with pytest.raises(ConnectionError, match=r"memory limit of 300\.0 MiB exceeded"):
                way()


def test_calls_after_the_sandbox_has_ended_say_so(interface: Path) -> None:
    with ScopedSandbox(PLAIN) as sandbox:
        tools = served(sandbox, interface, "ended")
        assert tools.count("a") == 1
    with pytest.raises((InterfaceDiedError, ConnectionError)):
        tools.count("a")


def test_hidden_model_is_loaded_by_its_name_and_told_to_nobody(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "organism-of-interest")
    file = tmp_path / "interface.py"
    file.write_text(
        "import os\n"
        f"path = get_model_path({str(folder)!r})\n"
        "@expose\ndef look() -> list[str]:\n"
        "    return [path, *list_configured_models(), *sorted(os.listdir(path))]\n"
        "@expose\ndef fail() -> None:\n    raise RuntimeError('could not load ' + path)\n"
    )
    config = SandboxConfig(
        gpu=None,
        provider="local",
        python_packages=["numpy"],
        models=[ModelConfig(name=str(folder), hidden=True)],
    )
    with ScopedSandbox(config) as sandbox:
        library = sandbox.serve(file)
        tools: Any = library.connect()
        seen = tools.look()
        with pytest.raises(RuntimeError) as caught:
            tools.fail()
    told = [*seen, str(caught.value), library.docs, *map(bytes.decode, library.files.values())]
    assert seen[0] == "model_0"
    assert not any("interest" in text for text in told)
    assert traceback_of(caught.value) == ""


def test_an_interface_without_network_is_told_where_that_is_said(tmp_path: Path) -> None:
    reach = "import urllib.request\nurllib.request.urlopen('http://example.org', timeout=20)\n"
    (tmp_path / "loading.py").write_text(reach)
    (tmp_path / "calling.py").write_text(
        f"@expose\ndef reach() -> str:\n    {reach.replace(chr(10), chr(10) + '    ')}\n"
        "@expose\ndef fail() -> None:\n    raise OSError('else')\n"
    )
    advice = r"this sandbox has no network: SandboxConfig\(network=...\)"
    with ScopedSandbox(PLAIN) as scoped:
        with pytest.raises(ServeError, match=advice):
            scoped.serve(tmp_path / "loading.py")
        calling = scoped.serve(tmp_path / "calling.py").connect()
        with pytest.raises(RemoteError, match=advice):
            calling.reach()
        with pytest.raises(RemoteError) as caught:
            calling.fail()
        assert "network" not in str(caught.value)
