"""The targets of hostile code: a served interface, and sessions that can call it."""

from collections.abc import Iterator

import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import LocalSession, create_local_session
from seer.workspace import Library, Workspace

INTERFACE = '''"""Tools."""

import time

import numpy as np
from seer.rpc import Handle

MARK = "only-in-the-source"


@expose
def echo(text: str) -> str:
    """Give the text back."""
    return text


@expose
def slow(seconds: float) -> float:
    """Take a while."""
    time.sleep(seconds)
    return seconds


@expose
def total(numbers: np.ndarray) -> int:
    """Add up."""
    return int(numbers.sum())


@expose
def keep(text: str) -> Handle:
    """Keep a text here."""
    return Handle(text)


@expose
def leave(how: str) -> None:
    """Raise what ends programs."""
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "close": GeneratorExit}[how](how)


@expose
def nest(depth: int) -> list:
    """Nest lists."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@expose
def pretend() -> dict:
    """Look like a value of the wire format."""
    return {"$seer": "array", "buffer": 0, "dtype": "O", "shape": [1]}
'''


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """An interface, served from a sandbox of its own."""
    file = tmp_path_factory.mktemp("interface") / "tools.py"
    file.write_text(INTERFACE)
    config = SandboxConfig(gpu=None, provider="local", python_packages=["numpy"])
    with ScopedSandbox(config) as sandbox:
        yield sandbox.serve(file, "library", "tools")


@pytest.fixture(scope="module")
def session(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSession]:
    """A session whose agent is hostile."""
    folder = tmp_path_factory.mktemp("agent") / "work"
    with create_local_session(Workspace(libraries=[library]), folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def neighbour(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSession]:
    """Another session with the same library."""
    folder = tmp_path_factory.mktemp("neighbour") / "work"
    with create_local_session(Workspace(libraries=[library]), folder) as opened:
        yield opened
