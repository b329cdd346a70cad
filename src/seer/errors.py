"""Every exception that Seer raises, and the filter that their messages pass.

This module imports no other part of Seer, because the gate's client needs a copy of it in jails
where the rest of Seer is absent. Most exceptions also inherit a fitting builtin exception, so
`except TimeoutError` and `except ValueError` catch them.

A message says what happened, with the value, and then what to do.
"""

# Characters that control a terminal or hide part of a line: C0 except tab and newline, DEL, C1,
# lone surrogates (which some locales print as raw bytes), characters that reorder or break lines,
# and invisible characters. The joiners U+200C and U+200D stay: Persian, Hindi and emoji need them.
_UNSAFE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str, *, as_json: bool = False) -> str:
    """Replace each character that could control a terminal by an escape.

    This is the one filter for text that an agent, a model or a package wrote. `seer.console`
    applies it to everything that it prints.

    Args:
        text: Any text; newlines and tabs stay.
        as_json: Whether the text is a JSON document. The result is then JSON of the same value.
    """
    if text.isascii() and text.isprintable():
        return text
    import re  # imported on use: a client in a jail must start fast, and rarely gets here

    if as_json:
        import json

        return re.sub(_UNSAFE, lambda found: json.dumps(found[0])[1:-1], text)
    text = text.replace("\r\n", "\n")
    return re.sub(_UNSAFE, lambda found: ascii(found[0])[1:-1], text)


class SeerError(Exception):
    """The base class of all exceptions that Seer raises."""

    def __str__(self) -> str:
        # A message may quote a sandbox's output, and Python prints tracebacks unfiltered.
        return visible(super().__str__())


# --- what the user wrote ---------------------------------------------------------------------


class ConfigError(SeerError, ValueError):
    """A configuration field has a value that cannot work.

    Attributes:
        field: The field, as in `SandboxConfig.gpu` or `ModelConfig.name`.
        value: What was given.
        reason: Why it cannot work, and what to do.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}={value!r}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class MissingExtraError(SeerError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class UnknownOrganismError(SeerError, LookupError):
    """There is no model organism of that name."""


class OrganismGateError(SeerError, RuntimeError):
    """An organism failed a test before its release; `report` has what was measured."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class SecretMissingError(SeerError, LookupError):
    """A secret named in the configuration is neither in the environment nor in `.env`."""


class HostResourceError(SeerError, OSError):
    """This host has no free disk space, file descriptors or writable folder; see `errno`."""


# --- machines ----------------------------------------------------------------------------------


class ProviderError(SeerError):
    """A provider could not do what was asked; the message quotes the provider."""


class HostUnreachableError(ProviderError, ConnectionError):
    """A remote host cannot be reached, or the connection to it broke."""


class HostRefusedError(ProviderError, PermissionError):
    """A remote host's key differs from the known one, or the host accepts none of your keys."""


class HostUnsuitableError(ProviderError):
    """A remote host lacks something that a machine needs; the message says how to add it."""


class HostFullError(ProviderError, OSError):
    """A disk of a remote host is full."""


class CapacityError(ProviderError):
    """No GPU became free, or could be rented, within `start_timeout`."""


class CredentialsError(ProviderError, PermissionError):
    """A provider's credentials are missing, or the provider refuses them."""


class QuotaError(ProviderError):
    """The account may not start another machine: its limit is reached, or its credit is used up."""


class UnknownGpuError(ProviderError, LookupError):
    """A provider has no GPU of this name; the message lists the GPUs that it has."""


class ImageBuildError(ProviderError):
    """A provider could not build the machine's image; the message ends with the build's log."""


class StartError(SeerError):
    """A sandbox did not start. Nothing of it is left running.

    Attributes:
        phase: The phase that failed (`machine`, `packages`, `models`, ...).
    """

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(f"start failed in phase {phase!r}: {message}")
        self.phase = phase


class SandboxNotFoundError(SeerError, LookupError):
    """No live sandbox has this id; the message says how it ended, if that is known."""


class SandboxLostError(SeerError, ConnectionError):
    """The sandbox ended, or can no longer be reached, while it was in use."""


class PreemptedError(SandboxLostError):
    """The provider took the machine away, for example for a higher bidder or for maintenance."""


class SandboxStateError(SeerError, RuntimeError):
    """The call does not fit the sandbox's state (not started, already terminated, ...)."""


class EndingError(SeerError, ExceptionGroup[Exception]):
    """Several steps of ending a sandbox or a session failed; all steps were tried.

    Attributes:
        exceptions: The exceptions of the steps that failed.
    """


class SandboxPausedError(SandboxStateError):
    """The sandbox is paused, so nothing in it can answer; `resume()` continues it."""


class UserUnsupportedError(ProviderError):
    """Commands cannot be run as another user in this machine."""


class PauseUnsupportedError(ProviderError):
    """A provider cannot pause a machine and keep its memory; the message says what it can do."""


class CommandFailedError(SeerError, RuntimeError):
    """A command exited with a status other than zero.

    Attributes:
        exit_code: The exit status; negative numbers are signals.
        stdout: The command's standard output.
        stderr: The command's standard error.
    """

    def __init__(self, command: str, exit_code: int, stdout: str, stderr: str) -> None:
        tail = (stderr.strip() or stdout.strip())[-2000:]
        super().__init__(
            f"command exited with {exit_code}: {command[:200]!r}" + (f"\n{tail}" if tail else "")
        )
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class CommandTimeoutError(SeerError, TimeoutError):
    """A command ran past its timeout; its whole process tree was killed.

    Attributes:
        stdout: The partial standard output.
        stderr: The partial standard error.
    """

    def __init__(self, command: str, timeout: float, stdout: str, stderr: str) -> None:
        super().__init__(
            f"command killed after {timeout:g} s (output is partial): {command[:200]!r}"
        )
        self.timeout = timeout
        self.stdout = stdout
        self.stderr = stderr


class RemoteFileError(SeerError, OSError):
    """A file operation inside a sandbox failed; `errno` and `filename` are those of the sandbox."""


class ModelError(SeerError):
    """A model could not be found, downloaded or prepared."""


class PackageError(SeerError):
    """A package environment could not be built; the message quotes the resolver."""


class RepoError(SeerError):
    """A repository could not be cloned, checked out or installed."""


class SnapshotError(SeerError):
    """A snapshot could not be taken or restored."""


# --- isolation ---------------------------------------------------------------------------------


class IsolationError(SeerError):
    """A jail could not be set up, so nothing was started."""


class IsolationUnavailableError(IsolationError):
    """No jail backend works on this machine; the message says why and what to do."""


class PathEscapeError(IsolationError, PermissionError):
    """A path leads out of the folder it must stay in (through `..`, a symlink or a mount)."""


# --- agents ------------------------------------------------------------------------------------


class RunControlError(SeerError, ConnectionError):
    """A run could not be reached from another process, or refused the request."""


class ToolServerError(SeerError, ConnectionError):
    """A tool server did not start, or died; the message names it and quotes its last output."""


class ScriptError(SeerError, AssertionError):
    """A scripted agent's step failed: an assertion does not hold, or the step cannot be run."""


# --- records of runs ---------------------------------------------------------------------------


class RecordError(SeerError, OSError):
    """A record cannot be written or read; the message names the file and the reason."""


class RunNotFoundError(SeerError, LookupError):
    """No run has this name, or several match it."""


class ReplayDivergenceError(SeerError, AssertionError):
    """A replayed program did something other than the recorded one.

    Attributes:
        recorded: What the record has at this point; empty at the end of the record.
        found: What the program did.
    """

    def __init__(self, message: str, *, recorded: str, found: str) -> None:
        super().__init__(message)
        self.recorded = recorded
        self.found = found


# --- the gate ----------------------------------------------------------------------------------


class ServeError(SeerError):
    """An interface file could not be served.

    Attributes:
        message: What is wrong, without file and line.
        file: The interface file.
        line: The line with the error, or None if no line is known.
        remote_traceback: The traceback from the sandbox; empty if there is none.
    """

    def __init__(
        self, message: str, *, file: str = "", line: int | None = None, remote_traceback: str = ""
    ) -> None:
        where = f"{file}:{line}: " if line is not None else (f"{file}: " if file else "")
        super().__init__(where + message + (f"\n{remote_traceback}" if remote_traceback else ""))
        self.message = message
        self.file = file
        self.line = line
        self.remote_traceback = remote_traceback


class GateError(SeerError):
    """A call through the gate did not reach its function, or its answer did not come back."""


class ProtocolError(GateError):
    """A peer used another protocol or protocol version, or exceeded the protocol's limits."""


class UnknownFunctionError(GateError, AttributeError):
    """The interface exposes no function of this name."""


class ArgumentError(GateError, TypeError):
    """An argument does not fit the function's type hints; the message names the parameter."""


class ResultError(GateError, TypeError):
    """A function returned a value that cannot be sent; the message says where in the result."""


class BudgetExceededError(GateError):
    """A budget is used up; the message says which one, and its size."""


class DeadlineExceededError(GateError, TimeoutError):
    """The call ran past its deadline and was stopped."""


class CallCancelledError(GateError):
    """The call was cancelled before it ended."""


class StillRunningError(GateError):
    """An earlier call of this caller was stopped and its function still runs.

    Until that function ends, no other call of the caller starts. The new call was not executed.
    """


class CallLostError(GateError, ConnectionError):
    """The interface died during the call, so the call may or may not have had an effect."""


class InterfaceRestartedError(GateError, ConnectionError):
    """The interface restarted, so its module state is gone. The call was not executed."""


class InterfaceDiedError(GateError, ConnectionError):
    """The interface no longer runs; the message says how it ended."""


class GateBusyError(GateError):
    """The gate or its host has reached a limit, which the message names. Try again later.

    Limits are: connections, descriptors, memory, and the unread replies of one caller.
    """


class HandleError(GateError, LookupError):
    """A handle is unknown, freed, or belongs to another caller."""


class RemoteError(SeerError):
    """An exposed function raised an exception.

    If a builtin exception has the same name, the instance also inherits that builtin, so that
    `except ValueError` works.

    Attributes:
        type_name: The name of the exception's class in the sandbox.
        remote_traceback: The traceback from the sandbox; empty if tracebacks are off.
    """

    type_name: str = ""
    remote_traceback: str = ""


# --- ready-made interfaces -----------------------------------------------------------------------


class ModelInputError(SeerError, ValueError):
    """An argument does not fit the model, such as a layer that the model does not have."""


class CallLimitError(ModelInputError):
    """A call exceeds a limit for one call; the message names the limit and what to change."""


class AnswerError(SeerError, ValueError):
    """A final answer is missing, or has a form that cannot be graded."""
