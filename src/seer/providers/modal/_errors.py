"""Translates Modal's errors to Seer's, with one map and one context manager.

Every message has Modal's own text and then what to do.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from grpclib import GRPCError
from grpclib.exceptions import StreamTerminatedError
from modal import exception as modal

from seer.errors import (
    CapacityError,
    CredentialsError,
    HostUnreachableError,
    ImageBuildError,
    ProviderError,
    QuotaError,
    SandboxLostError,
    SeerError,
    SnapshotError,
    UnknownGpuError,
)

_Make = Callable[[str], SeerError]


def _credentials(words: str) -> SeerError:
    return CredentialsError(
        f"Modal refuses the credentials: {words}; run `modal token new`, or set MODAL_TOKEN_ID and "
        f"MODAL_TOKEN_SECRET"
    )


def _denied(words: str) -> SeerError:
    return CredentialsError(
        f"Modal does not permit this: {words}; ask the workspace's owner, or use another token"
    )


def _exhausted(words: str) -> SeerError:
    if "capacity" in words.lower():
        return CapacityError(f"Modal: {words}")
    return QuotaError(
        f"Modal: {words}; end sandboxes that are not needed (`seer ps`), or raise the limit at "
        f"modal.com/settings"
    )


def _invalid(words: str) -> SeerError:
    if "gpu" in words.lower():
        return UnknownGpuError(
            f"Modal: {words}; choose one of T4, L4, A10, L40S, A100, A100-40GB, A100-80GB, "
            f"RTX-PRO-6000, H100, H200, B200"
        )
    return ProviderError(f"Modal refuses the request: {words}; check provider_options")


def _gone(words: str) -> SeerError:
    return SandboxLostError(f"Modal: {words}")


def _build(words: str) -> SeerError:
    return ImageBuildError(f"Modal could not build the image: {words}")


def _unreachable(words: str) -> SeerError:
    return HostUnreachableError(f"Modal cannot be reached: {words}; see status.modal.com")


def _outdated(words: str) -> SeerError:
    return ProviderError(f"Modal: {words}; upgrade it with `pip install -U 'seer-interp[modal]'`")


def _other(words: str) -> SeerError:
    return ProviderError(f"Modal: {words}")


def _snapshot(words: str) -> SeerError:
    return SnapshotError(f"Modal: {words}")


def _timed_out(words: str) -> SeerError:
    return SandboxLostError("its timeout passed" + (f" ({words})" if words else ""))


def _terminated(words: str) -> SeerError:
    return SandboxLostError("terminated" + (f" ({words})" if words else ""))


MAP: dict[type[BaseException], _Make] = {
    modal.Error: _other,
    modal.AlreadyExistsError: _other,
    modal.AuthError: _credentials,
    modal.InternalError: _unreachable,
    modal.InvalidError: _invalid,
    modal.ConflictError: _gone,
    modal.DataLossError: _other,
    modal.NotFoundError: _gone,
    modal.PermissionDeniedError: _denied,
    modal.ResourceExhaustedError: _exhausted,
    modal.ServiceError: _unreachable,
    modal.UnimplementedError: _outdated,
    modal.RemoteError: _other,
    modal.WorkspaceManagementError: _denied,
    modal.TimeoutError: _unreachable,
    modal.SandboxTimeoutError: _timed_out,
    modal.SnapshotCreationError: _snapshot,
    modal.ExecTimeoutError: _unreachable,
    modal.SandboxTerminatedError: _terminated,
    modal.FunctionTimeoutError: _other,
    modal.MountUploadTimeoutError: _unreachable,
    modal.VolumeUploadTimeoutError: _unreachable,
    modal.LogsFetchError: _other,
    modal.InteractiveTimeoutError: _unreachable,
    modal.OutputExpiredError: _other,
    modal.ConnectionError: _unreachable,
    modal.VersionError: _outdated,
    modal.ExecutionError: _other,
    modal.DeserializationError: _other,
    modal.SerializationError: _other,
    modal.RequestSizeError: _other,
    modal.InternalFailure: _unreachable,
    modal.ClientClosed: _unreachable,
    modal.SandboxFilesystemError: _other,
    modal.SandboxFilesystemNotFoundError: _other,
    modal.SandboxFilesystemDirectoryNotEmptyError: _other,
    modal.SandboxFilesystemIsADirectoryError: _other,
    modal.SandboxFilesystemNotADirectoryError: _other,
    modal.SandboxFilesystemPermissionError: _other,
    modal.SandboxFilesystemFileTooLargeError: _other,
    modal.SandboxFilesystemPathAlreadyExistsError: _other,
    modal.ImageBuildError: _build,
    GRPCError: _unreachable,
    StreamTerminatedError: _unreachable,
    OSError: _unreachable,
}
"""Seer's error for each of Modal's exceptions."""


def translate(error: BaseException) -> SeerError | None:
    """Seer's error for one of Modal's; None for any other exception."""
    for kind in type(error).__mro__:
        if kind in MAP:
            return MAP[kind](str(error).strip() or type(error).__name__)
    return None


@contextmanager
def translated() -> Generator[None]:
    """Raise Seer's errors instead of Modal's."""
    try:
        yield
    except SeerError:
        raise
    except Exception as error:
        made = translate(error)
        if made is None:
            raise
        raise made from error
