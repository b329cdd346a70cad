"""For every test: its own folders, a clean environment, and a check that nothing is left.

The cache (package environments, bundles) is the user's own: it holds only what can be made again.
"""

import gc
import os
import re
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import hypothesis
import pytest

from seer.providers.agent import cleaning
from tests.support.turns import turn

# Siblings, because the process that distributes tests to workers has one too, and the workers
# inherit its environment. Short, because socket addresses are short.
_PLACE = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_ROOT = Path(tempfile.mkdtemp(prefix="t-", dir=_PLACE))
_TEMPORARY = _ROOT / "t"
_SOME_FULL = re.compile(r"mark\.full\b|\bMARKS\b")
_ALL_FULL = re.compile(r"^pytestmark = \[?pytest\.mark\.full\b", re.MULTILINE)
_MACHINE_SETTINGS = ("IS_SANDBOX", "SEER_PROVIDER", "SEER_AGENT", "SEER_MODEL_ALIASES", "HF_TOKEN")


def pytest_configure(config: pytest.Config) -> None:
    """Point Seer's folders away from the user's, before anything reads them."""
    # Workers get a folder below that of the process that distributes tests.
    if config.option.basetemp is None:
        config.option.basetemp = str(_ROOT / "p")
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        os.environ[name] = str(_ROOT / name.split("_")[1].lower())
    # For temporary files of this process's tests alone, and of the programs that they start, some
    # of them as other users: what is in it at the end was left over.
    _TEMPORARY.mkdir(exist_ok=True)
    _TEMPORARY.chmod(0o1777)
    _ROOT.chmod(0o711)
    os.environ["TMPDIR"] = tempfile.tempdir = str(_TEMPORARY)
    # A cache that torch deliberately keeps there for all programs of a user.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_ROOT / "torch")
    os.environ["SEER_PROGRESS"] = "off"
    # Ray reads both only once per process, when it is first imported.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(_ROOT / "ray-token")
    (_ROOT / "ray-token").write_text(secrets.token_hex(32), encoding="utf-8")
    # A shell starts its background jobs with interrupts ignored, but some tests need interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Several workers share the cores: threads of one test's model would wait for another's.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in _MACHINE_SETTINGS:
        os.environ.pop(name, None)
    # A check of international addresses that no test uses. jsonschema imports it where it is
    # installed, and it compiles a grammar for seconds.
    sys.modules["rfc3987_syntax"] = cast("ModuleType", None)
    # A few examples of each in every run, regardless of the load; campaigns try many.
    hypothesis.settings.register_profile("suite", max_examples=40, deadline=None)
    hypothesis.settings.load_profile("suite")


def pytest_unconfigure() -> None:
    """Remove this process's folder, with trees deeper than pytest can remove."""
    tempfile.tempdir = None
    cleaning.remove_tree(os.fsencode(_ROOT))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import test files of the suite that is not selected.

    Importing browsers, vendors' libraries and models takes a third of the fast suite's time, and
    more than half of all tests belong to the fast suite.
    """
    asked = str(config.getoption("markexpr"))
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    if "not full" in asked:
        return True if _ALL_FULL.search(text) else None
    return True if asked.startswith("full") and not _SOME_FULL.search(text) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`, keep tests together that share something expensive."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.scheduling import Groups

    return Groups(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker the folder of the locks by which workers take turns."""
    node.workerinput["turns"] = str(_ROOT)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let tests that use up what the kernel counts per user run alone, if workers share a user.

    The time that a test waits for its turn does not count towards its time limit.
    """
    # Only the workers take turns: a test may run pytest itself.
    turns: str | None = getattr(item.config, "workerinput", {}).get("turns")
    if turns is None or os.geteuid() == 0:
        return (yield)
    with turn(Path(turns), alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long tests, so that no worker is left alone with one at the end."""
    items.sort(key=_time_limit, reverse=True)


def _time_limit(item: pytest.Item) -> float:
    """A test with its own time limit takes long."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


def pytest_collection_finish() -> None:
    """Exempt imported objects from garbage collection: they stay, and they are millions."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as Seer does."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Generator[None]:
    """Check at the end that no process, mount, machine's folder or temporary folder is left."""
    yield
    # The processes of a controller that a test killed end by themselves, a moment later.
    deadline = time.monotonic() + 30
    while (left := [*_machines(), *_temporary(), *_processes(), *_mounts()]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    assert not left, "left over by the tests:\n" + "\n".join(left)


def _machines() -> list[str]:
    return [f"folder {path}" for path in _ROOT.glob("state/seer/machines/*")]


def _temporary() -> list[str]:
    """What tests and their programs left in the folder for temporary files."""
    return [f"temporary {path}" for path in _TEMPORARY.iterdir()]


def _processes() -> list[str]:
    """Processes, other than this one and its ancestors, that refer to this run's folder."""
    marker = os.fsencode(_ROOT)
    own = {os.getpid(), os.getppid()}
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if marker in command or marker in environment:
            words = command.replace(b"\0", b" ").decode(errors="replace")
            found.append(f"process {entry.name}: {words[:200]}")
    return found


def _mounts() -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [f"mount {line}" for line in lines if str(_ROOT) in line]
