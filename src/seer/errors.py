"""Every exception that Seer raises, and the filter that their messages pass.

This module imports nothing of Seer, because a copy of it travels with the gate's client into jails
where the rest of Seer is absent. Leaves also inherit the builtin that fits, so `except
TimeoutError` and `except ValueError` work as a reader would expect.

Messages say what happened, with the value, and then what to do.
"""

# Everything that acts on a terminal or hides what a line says: C0 but tab and newline, DEL, C1,
# lone surrogates (which some locales print as raw bytes), marks that reorder or break lines, and
# invisible letters. The joiners U+200C and U+200D stay: Persian, Hindi and emoji need them.
_UNSAFE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str, *, as_json: bool = False) -> str:
    """The text with each character that could act on a terminal written as an escape.

    It is the one filter for text that an agent, a model or a package wrote; `seer.console`
    applies it to all that it prints.

    Args:
        text: Any text; newlines and tabs stay.
        as_json: Whether the text is a JSON document; it then stays one, of the same value.
    """
    if text.isascii() and text.isprintable():
        return text
    import re  # here: a client in a jail rarely prints anything, and must start fast

    if as_json:
        import json

        return re.sub(_UNSAFE, lambda found: json.dumps(found[0])[1:-1], text)
    text = text.replace("\r\n", "\n")
    return re.sub(_UNSAFE, lambda found: ascii(found[0])[1:-1], text)


class SeerError(Exception):
    """The root of all exceptions raised by Seer."""

    def __str__(self) -> str:
        # A message may quote a sandbox's output, and Python prints tracebacks as they are.
        return visible(super().__str__())


# --- what the user wrote ---------------------------------------------------------------------


class ConfigError(SeerError, ValueError):
    """A configuration field has a value that cannot work.

    Attributes:
        field: The field, as in `SandboxConfig.gpu` or `ModelConfig.name`.
        value: What was given.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}={value!r}: {reason}")
        self.field = field
        self.value = value


class MissingExtraError(SeerError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class UnknownOrganismError(SeerError, LookupError):
    """There is no model organism of that name."""


class SecretMissingError(SeerError, LookupError):
    """A secret named in the configuration is neither in the environment nor in `.env`."""


class HostResourceError(SeerError, OSError):
    """This host lacks room, file descriptors or a folder that can be written; see `errno`."""


# --- machines ----------------------------------------------------------------------------------


class ProviderError(SeerError):
    """A provider could not do what was asked; the message carries the provider's own words."""


class HostUnreachableError(ProviderError, ConnectionError):
    """A host elsewhere cannot be reached, or the connection to it broke."""


class HostRefusedError(ProviderError, PermissionError):
    """A host elsewhere is there, but its key is not the known one, or it accepts none of ours."""


class HostUnsuitableError(ProviderError):
    """A host elsewhere lacks what a machine on it needs; the message says how to add it."""


class HostFullError(ProviderError, OSError):
    """A disk of a host elsewhere is full."""


class CapacityError(ProviderError):
    """No GPU was free, or to be rented, within `start_timeout`."""


class CredentialsError(ProviderError, PermissionError):
    """A provider's credentials are missing, or it refuses them."""


class QuotaError(ProviderError):
    """The account may not have one more machine: its limit is reached, or its money is used up."""


class UnknownGpuError(ProviderError, LookupError):
    """A provider has no GPU of this name; the message names those it has."""


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
    """No live sandbox has this id; the message says how it ended, where that is known."""


class SandboxLostError(SeerError, ConnectionError):
    """The sandbox ended, or can no longer be reached, while it was in use."""


class PreemptedError(SandboxLostError):
    """The provider took the machine away, for a higher bidder or for maintenance."""


class SandboxStateError(SeerError, RuntimeError):
    """The call does not fit the sandbox's state (not started, already terminated, ...)."""


class EndingError(SeerError, ExceptionGroup[Exception]):
    """Several steps of ending a sandbox or a session failed; all of them were tried.

    Attributes:
        exceptions: What each of them raised.
    """


class SandboxPausedError(SandboxStateError):
    """The sandbox is paused, so nothing in it can answer; `resume()` lets it go on."""


class UserUnsupportedError(ProviderError):
    """Commands cannot be run as another user in this machine."""


class PauseUnsupportedError(ProviderError):
    """A provider cannot pause a machine and keep its memory; the message says what it can do."""


class CommandFailedError(SeerError, RuntimeError):
    """A command exited with a status other than zero.

    Attributes:
        exit_code: The exit status; negative numbers are signals.
        stdout: What the command printed.
        stderr: What it printed to standard error.
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
        stdout: What it had printed until then; the output is partial.
        stderr: The same for standard error.
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
    """A package environment could not be built; the message carries the resolver's own words."""


class RepoError(SeerError):
    """A repository could not be cloned, checked out or installed."""


class SnapshotError(SeerError):
    """A snapshot could not be taken or restored."""


# --- isolation ---------------------------------------------------------------------------------


class IsolationError(SeerError):
    """A boundary could not be set up, so nothing was started."""


class IsolationUnavailableError(IsolationError):
    """No jail backend works on this machine; the message says why, and what to do."""


class PathEscapeError(IsolationError, PermissionError):
    """A path leads out of the folder it must stay in (through `..`, a symlink or a mount)."""


# --- agents ------------------------------------------------------------------------------------


class RunControlError(SeerError, ConnectionError):
    """A running run could not be reached from outside, or refused what was asked of it."""


class ToolServerError(SeerError, ConnectionError):
    """A tool server did not start, or died; the message names it and carries its last words."""


class ScriptError(SeerError, AssertionError):
    """A scripted agent's step failed: an assertion does not hold, or the step cannot be run."""


class AgentProcessError(SeerError, ConnectionError):
    """A vendor's agent process did not start, or died."""


# --- records of runs ---------------------------------------------------------------------------


class RecordError(SeerError, OSError):
    """A record cannot be written or read; the message names the file and the reason."""


class RunNotFoundError(SeerError, LookupError):
    """There is no run of this name, or several fit it."""


class ReplayDivergenceError(SeerError, AssertionError):
    """A replayed program did something else than the recorded one.

    Attributes:
        recorded: What the record holds at this point; empty when it holds nothing more.
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
        message: What is wrong, without the place.
        file: The interface file.
        line: The line at fault, or None where there is none.
        remote_traceback: The traceback from the sandbox, where there is one.
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
    """A peer spoke the wrong protocol, the wrong version of it, or broke its limits."""


class UnknownFunctionError(GateError, AttributeError):
    """The interface exposes no function of this name."""


class ArgumentError(GateError, TypeError):
    """An argument does not fit the function's hints; the message names the parameter."""


class ResultError(GateError, TypeError):
    """A function returned something that cannot be sent; the message names the path in it."""


class BudgetExceededError(GateError):
    """A budget is used up; the message says which, and how much it was."""


class DeadlineExceededError(GateError, TimeoutError):
    """The call ran past its deadline and was stopped."""


class CallCancelledError(GateError):
    """The call was cancelled before it ended."""


class StillRunningError(GateError):
    """An earlier call of this caller was stopped and its function still runs.

    No other call of the caller is started until it ends. The call was not executed.
    """


class CallLostError(GateError, ConnectionError):
    """The interface died during the call; whether it had an effect is not known."""


class InterfaceRestartedError(GateError, ConnectionError):
    """The interface was started again, so its module state is gone. The call was not executed."""


class InterfaceDiedError(GateError, ConnectionError):
    """The interface is not running any more; the message says how it ended."""


class GateBusyError(GateError):
    """The gate, or its host, has no room for this now; the message says of what. Try again.

    What may have run out: connections, descriptors, memory, or what one caller may leave unread.
    """


class HandleError(GateError, LookupError):
    """A handle is unknown, freed, or belongs to another caller."""


class RemoteError(SeerError):
    """An exposed function raised.

    Raised as a subclass that also inherits the builtin exception of the same name, where there
    is one, so that `except ValueError` works.

    Attributes:
        type_name: The name of the exception's class in the sandbox.
        remote_traceback: The traceback from the sandbox; empty where tracebacks are off.
    """

    type_name: str = ""
    remote_traceback: str = ""


# --- ready-made interfaces -----------------------------------------------------------------------


class ModelInputError(SeerError, ValueError):
    """What was asked of a model does not fit it (a layer it has not, a text without tokens ...)."""


class CallLimitError(ModelInputError):
    """More was asked than one call may do; the message names the limit and how to ask for less."""


class AnswerError(SeerError, ValueError):
    """A final answer is missing, or not of the form that can be graded."""
