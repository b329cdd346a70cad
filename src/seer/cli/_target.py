"""The target of a command: an interface file, served for as long as the command runs, or an
interface that a detached sandbox already serves.
"""

import contextlib
import re
import shlex
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from seer.errors import ConfigError, SeerError, ServeError, StartError

if TYPE_CHECKING:
    from seer.environment import ScopedSandbox
    from seer.workspace import Library


@dataclass(frozen=True, kw_only=True)
class Around:
    """The sandbox that an interface file needs."""

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


def interface_file(target: str) -> Path | None:
    """The interface file that a target names; None if it is the id of a sandbox.

    Raises:
        click.UsageError: The target looks like a file, but does not exist.
    """
    file = Path(target)
    if file.is_file():
        return file
    if file.suffix == ".py" or "/" in target:
        raise click.UsageError(f"there is no file {target!r}")
    return None


@contextlib.contextmanager
def opened(target: str, around: Around, *, name: str | None = None) -> Generator[Opened]:
    """Serve an interface file while the block runs, or use an interface of a running sandbox.

    Args:
        target: The file, or the sandbox's id.
        around: The sandbox that the file needs.
        name: The interface's name; by default the file's stem, or the sandbox's only interface.

    Raises:
        click.UsageError: The file does not exist, or the sandbox serves no interface that can be
            used here, or several and `name` is None.
    """
    file = interface_file(target)
    if file is None:
        yield _take_over(target, around.provider, name)
        return
    with started(file, around, name=name) as found:
        yield found


@contextlib.contextmanager
def started(
    file: Path, around: Around, *, name: str | None = None, replicas: int = 1
) -> Generator[Opened]:
    """Serve an interface file in a new sandbox, which ends with the block unless it was detached.

    Raises:
        SeerError: The file cannot be served; the message names the option that may help.
    """
    from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
    from seer.providers import DEFAULT, resolve_provider

    provider = around.provider or DEFAULT
    if around.gpu is not None:
        # The default provider may go on without a GPU; a named one fails. So name it here.
        provider = resolve_provider(provider)
    config = SandboxConfig(
        gpu=around.gpu,
        models=[ModelConfig(name=model, hidden=around.hidden) for model in around.models],
        python_packages=list(around.packages),
        provider=provider,
        isolation=around.isolation,
    )
    try:
        scoped = ScopedSandbox(config).start()
    except StartError as error:
        if around.gpu is not None and "gpu=" in str(error):
            hint = "on the command line, leave out --gpu or choose another --provider"
            raise SeerError(f"{error}; {hint}") from error
        raise
    try:
        try:
            library = scoped.serve(file, "library", name, replicas=replicas)
        except ServeError as error:
            raise _with_hint(error, file) from error
        except ConfigError as error:
            if error.field != "serve(name=)":
                raise
            hint = "" if name else "; it comes from the file, so choose another with --name NAME"
            raise ConfigError("--name", error.value, error.reason + hint) from error
        yield Opened(scoped, library)
    finally:
        if not scoped.machine.detached:
            scoped.terminate()


def _with_hint(error: ServeError, file: Path) -> SeerError:
    """Add a hint to the error: how to provide the module that the file cannot import."""
    missing = re.search(r"No module named '(\w+)", str(error))
    if missing is None:
        return error
    if missing[1] == "seer":
        again = f"seer run {shlex.quote(str(file))}"
        hint = f"this file is a program, not an interface; run it with: {again}"
    else:
        hint = (
            "if a package provides it: --package NAME; "
            "a file that loads a model also needs --model NAME"
        )
    return SeerError(f"{error}\n{hint}")


def _take_over(sandbox_id: str, provider: str | None, name: str | None) -> Opened:
    """Use an interface of a running sandbox. A detached sandbox stays detached."""
    from seer.environment import ScopedSandbox
    from seer.providers import DEFAULT

    scoped = ScopedSandbox.from_id(sandbox_id, provider=provider or DEFAULT)
    if scoped.machine.was_detached:
        # Now, not at the end: MCP clients end this process with a signal.
        scoped.detach()
    there = scoped.served
    if not there:
        raise click.UsageError(
            f"{sandbox_id} serves nothing that this command can use: the interfaces of a sandbox "
            "are open to other programs only after it is detached (`seer serve --detach`)"
        )
    first, *others = there
    if name is None and others:
        raise click.UsageError(f"{sandbox_id} serves {', '.join(there)}; choose one with --name")
    return Opened(scoped, scoped.present(name or first))
