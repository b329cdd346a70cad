"""The provider under test, and the sandboxes that most checks share."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from seer.environment import ModelConfig, RepoConfig, Sandbox, SandboxConfig, ScopedSandbox
from seer.workspace import Library
from tests.support.hub import LoopbackHub

INTERFACE = '''
import os
import time

import numpy as np

log = []


@expose
def note(number: int) -> int:
    """Append a number to the log, and say how long the log is."""
    log.append(number)
    return len(log)


@expose
def read_log() -> list[int]:
    """All that was noted."""
    return log


@expose
def slow(number: int, seconds: float) -> int:
    """Take a while."""
    time.sleep(seconds)
    log.append(number)
    return number


@expose
def numbers(count: int) -> np.ndarray:
    """Many numbers."""
    return np.arange(count, dtype=np.float32)


@expose
def total(values: np.ndarray) -> float:
    """The sum of what was sent."""
    return float(values.sum())


@expose
def model_files() -> list[str]:
    """The files of the model."""
    return sorted(os.listdir(get_model_path("lab/downloaded")))
'''
MODEL = "lab/downloaded"
SECRET = "SEER_CONTRACT_SECRET"


class RemoteSubject:
    """A provider, and what its checks share; made when first asked for."""

    def __init__(
        self,
        provider: str,
        *,
        folder: Path,
        options: Mapping[str, object] | None,
        cut: Callable[[], object] | None,
        gpu: str | None,
        packages: tuple[str, ...],
    ) -> None:
        self.provider = provider
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.options = options
        self.gpu = gpu
        self.packages = packages
        self._cut = cut
        self._hub: LoopbackHub | None = None
        self._sandbox: Sandbox | None = None
        self._scoped: ScopedSandbox | None = None
        self._library: Library | None = None

    def config(self, **more: Any) -> SandboxConfig:
        """A configuration for this provider."""
        fields: dict[str, Any] = {
            "provider": self.provider,
            "provider_options": self.options,
            "gpu": self.gpu,
            "lease": 30.0,
        }
        return SandboxConfig(**{**fields, **more})

    def cut(self) -> None:
        """Break every connection to the host.

        Raises:
            AssertionError: The suite was given no way to.
        """
        if self._cut is None:
            raise AssertionError("give RemoteContract a way to cut, or leave these checks out")
        self._cut()

    @property
    def hub(self) -> LoopbackHub:
        """A hub of models, with one in it."""
        if self._hub is None:
            source = self.folder / "hub-model"
            source.mkdir()
            (source / "config.json").write_text('{"model_type": "contract"}')
            (source / "weights.bin").write_bytes(b"w" * 300_000)
            self._hub = LoopbackHub()
            self._hub.__enter__()
            self._hub.add_model(MODEL, source)
        return self._hub

    @property
    def repo(self) -> Path:
        """A git repository of this host."""
        folder = self.folder / "checked"
        if not folder.exists():
            folder.mkdir()
            (folder / "hello.txt").write_text("hello from the repository\n")
            identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
            for arguments in (
                ("init", "--quiet", "."),
                ("add", "."),
                (*identity, "commit", "--quiet", "-m", "first"),
            ):
                subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
        return folder

    @property
    def sandbox(self) -> Sandbox:
        """A whole machine: a notebook, a repository, a secret."""
        if self._sandbox is None:
            self._sandbox = Sandbox(
                self.config(
                    repos=[RepoConfig(str(self.repo))],
                    secrets=[SECRET],
                    env={"CONTRACT_PLAIN": "plain"},
                    network="none",
                )
            ).start()
        return self._sandbox

    @property
    def scoped(self) -> ScopedSandbox:
        """A machine that serves `INTERFACE`, with a model from the hub and one of this host's."""
        if self._scoped is None:
            own = self.folder / "own-model"
            own.mkdir(exist_ok=True)
            (own / "config.json").write_text('{"model_type": "own"}')
            self._scoped = ScopedSandbox(
                self.config(
                    python_packages=list(self.packages),
                    models=[ModelConfig(MODEL), ModelConfig(str(own), var_name="own")],
                )
            ).start()
        return self._scoped

    @property
    def library(self) -> Library:
        """The served interface."""
        if self._library is None:
            file = self.folder / "interface.py"
            file.write_text(INTERFACE)
            self._library = self.scoped.serve(file, name="contract_tools")
        return self._library

    def connect(self) -> ModuleType:
        """The served interface as a module, as a caller of its own."""
        return self.library.connect()

    def close(self) -> None:
        """End everything."""
        for sandbox in (self._sandbox, self._scoped):
            if sandbox is not None:
                sandbox.terminate()
        if self._hub is not None:
            self._hub.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)


def expect(condition: bool, message: str) -> None:
    """Fail with `message` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def equal(actual: object, wanted: object, what: str) -> None:
    """Fail unless both are equal."""
    expect(actual == wanted, f"{what}: {actual!r:.300} instead of {wanted!r:.300}")
