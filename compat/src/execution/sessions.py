"""Sessions as the original spells them: results are dictionaries, and failures raise."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, TypeVar

import seer.execution
from seer.execution import ExecutionResult
from seer.workspace import Workspace
from src._old import without_meaning
from src.environment.sandbox import NOTEBOOK_PACKAGES

SessionBase = seer.execution.Session
PathLike = str | os.PathLike[str]
S = TypeVar("S", bound=seer.execution.Session)


class Result(dict[str, Any]):
    """A result as a dictionary. `result` is seer's own result; its attributes work here too."""

    def __init__(self, result: ExecutionResult) -> None:
        error = result.error
        super().__init__(
            status=result.status,
            success=result.ok,
            output=result.text,
            stdout=result.stdout,
            stderr=result.stderr,
            result=result.value,
            error=None if error is None else f"{error.name}: {error.message}",
            traceback="" if error is None else error.traceback,
            images=result.images,
            exit_code=result.exit_code,
        )
        self.result = result

    def __getattr__(self, name: str) -> Any:
        """An attribute of seer's own result."""
        if name == "result":
            raise AttributeError(name)
        return getattr(self.result, name)

    def __str__(self) -> str:
        """The text that the code printed and displayed."""
        return self.result.text


class CellFailed(RuntimeError):
    """A cell or command failed; `result` has its output until then."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result['error'] or result['status']}\n{result['traceback']}".strip())
        self.result = result


class OldSession(seer.execution.Session):
    """The original's spellings that all sessions share."""

    @property
    def workspace_path(self) -> PurePath:
        """The agent's folder."""
        return self.workspace_dir

    @property
    def sandbox(self) -> Any:
        """The session's sandbox; None if the session runs in a jail on this machine."""
        return self._machines.sandbox

    def exec(self, code: str, hidden: bool | None = None, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run code and wait for its end. Raises `CellFailed` if it fails."""
        without_meaning("exec()", {"hidden": hidden})
        result = Result(super().exec(code, **options))
        if not result.ok:
            raise CellFailed(result)
        return result

    def exec_file(self, path: PathLike, **options: Any) -> Any:
        """Run the code of a file on this machine."""
        return self.exec(Path(path).read_text(encoding="utf-8"), **options)

    def exec_shell(self, command: str, **options: Any) -> Any:
        """Run a shell command in the session."""
        if self.kind == "cli":
            return self.exec(command, **options)
        code = f"""
import subprocess as _subprocess
_done = _subprocess.run(["bash", "-c", {command!r}], capture_output=True, text=True)
print(_done.stdout, end="")
if _done.returncode:
    raise RuntimeError(f"exit code {{_done.returncode}}: {{_done.stderr or _done.stdout}}")
"""
        return self.exec(code, **options)

    def setup(self, code: str | Mapping[str, str] | None = None, **options: Any) -> Any:
        """Run code before the agent starts; without code, do nothing."""
        return self.exec(code, **options) if isinstance(code, str) else None


class LocalSession(OldSession, seer.execution.LocalSession):
    """A `seer.execution.LocalSession` with the original's spellings."""


class NotebookSession(OldSession, seer.execution.NotebookSession):
    """A `seer.execution.NotebookSession` with the original's spellings."""

    @property
    def notebook_dir(self) -> Path:
        """The folder on this machine in which the notebook is saved."""
        return self.notebook_path.parent


class LocalNotebookSession(NotebookSession):
    """A notebook session in a jail on this machine."""


class CLISession(OldSession, seer.execution.CliSession):
    """A `seer.execution.CliSession` with the original's spellings."""

    def exec_shell(self, command: str, **options: Any) -> Any:
        """The same as `exec`."""
        return self.exec(command, **options)


def create_local_session(
    workspace: Workspace | None = None,
    name: str | None = None,
    workspace_dir: PathLike | None = None,
    **options: Any,
) -> LocalSession:
    """As in `seer.execution`, in the original's order of arguments."""
    made = seer.execution.create_local_session(workspace, workspace_dir, name, **options)
    return _spelled(made, LocalSession)


def create_notebook_session(
    sandbox: Any = None,
    workspace: Workspace | None = None,
    name: str | None = None,
    notebook_dir: PathLike | None = None,
    **options: Any,
) -> NotebookSession:
    """As in `seer.execution`, with the original's packages in a jail on this machine."""
    if sandbox is None:
        options["packages"] = [*NOTEBOOK_PACKAGES, *options.get("packages", ())]
    made = seer.execution.create_notebook_session(
        sandbox, _workspace(workspace, sandbox), name, notebook_dir=notebook_dir, **options
    )
    return _spelled(made, NotebookSession if sandbox is not None else LocalNotebookSession)


def create_local_notebook_session(
    workspace: Workspace | None = None,
    name: str | None = None,
    notebook_dir: PathLike | None = None,
    **options: Any,
) -> NotebookSession:
    """A notebook session in a jail on this machine."""
    return create_notebook_session(None, workspace, name, notebook_dir, **options)


def create_cli_session(
    sandbox: Any = None,
    workspace: Workspace | None = None,
    name: str | None = None,
    workspace_dir: PathLike | None = None,
    **options: Any,
) -> CLISession:
    """As in `seer.execution`."""
    made = seer.execution.create_cli_session(
        sandbox, _workspace(workspace, sandbox), name, workspace_dir=workspace_dir, **options
    )
    return _spelled(made, CLISession)


def _workspace(workspace: Workspace | None, sandbox: Any) -> Workspace | None:
    return workspace if workspace is not None else getattr(sandbox, "workspace", None)


def _spelled(session: seer.execution.Session, kind: type[S]) -> S:
    """The same session, as an instance of `kind`, which adds methods but no state."""
    session.__class__ = kind
    return session  # pyright: ignore[reportReturnType]
