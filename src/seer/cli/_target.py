"""What a command works on: an interface file, served for as long as the command runs, or an
interface that a detached sandbox serves already.
"""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from seer.environment import ScopedSandbox
    from seer.workspace import Library


@dataclass(frozen=True, kw_only=True)
class Around:
    """What an interface file needs around it."""

    models: tuple[str, ...] = ()
    hidden: bool = False
    packages: tuple[str, ...] = ()
    gpu: str | None = None
    provider: str | None = None
    isolation: Literal["auto", "bubblewrap", "landlock", "none"] = "auto"


@dataclass(frozen=True)
class Opened:
    """A served interface."""

    scoped: "ScopedSandbox"
    library: "Library"

    def mcp_config(self) -> dict[str, dict[str, Any]]:
        """An MCP server for it, which lives as long as this process."""
        return self.scoped.present(self.library.name, "mcp")


@contextlib.contextmanager
def opened(target: str, around: Around, *, name: str | None = None) -> Generator[Opened]:
    """Serve an interface file, or take over a detached sandbox; undo that at the end.

    Args:
        target: The file, or the sandbox's id.
        around: What the file needs around it.
        name: What the interface is called; by default the file's stem, or the only one there is.

    Raises:
        click.UsageError: The target is neither.
    """
    file = Path(target)
    if file.is_file():
        with started(file, around, name=name) as found:
            yield found
    elif file.suffix == ".py" or "/" in target:
        raise click.UsageError(f"there is no file {target!r}")
    else:
        with taken_over(target, around.provider, name) as found:
            yield found


@contextlib.contextmanager
def started(
    file: Path, around: Around, *, name: str | None = None, replicas: int = 1
) -> Generator[Opened]:
    """Serve an interface file in a sandbox of its own, which ends with the block unless it was
    detached.
    """
    from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
    from seer.providers import DEFAULT, resolve_provider

    provider = around.provider or DEFAULT
    if around.gpu is not None:
        # A provider that is named never goes on without the GPU that was typed.
        provider = resolve_provider(provider)
    config = SandboxConfig(
        gpu=around.gpu,
        models=[ModelConfig(name=model, hidden=around.hidden) for model in around.models],
        python_packages=list(around.packages),
        provider=provider,
        isolation=around.isolation,
    )
    scoped = ScopedSandbox(config).start()
    try:
        library = scoped.serve(file, "library", name, replicas=replicas)
        yield Opened(scoped, library)
    finally:
        if not scoped.machine.detached:
            scoped.terminate()


@contextlib.contextmanager
def taken_over(sandbox_id: str, provider: str | None, name: str | None) -> Generator[Opened]:
    """Use an interface of a detached sandbox, which stays detached."""
    from seer.environment import ScopedSandbox
    from seer.providers import DEFAULT

    scoped = ScopedSandbox.from_id(sandbox_id, provider=provider or DEFAULT)
    # At once, and not at the end: agents' programs end this process with a signal.
    scoped.detach()
    if name is None and len(scoped.served) != 1:
        there = ", ".join(scoped.served) or "nothing"
        raise click.UsageError(f"{sandbox_id} serves {there}; choose one with --name")
    yield Opened(scoped, scoped.present(name or scoped.served[0]))
