"""Runs one IPython kernel in a session's machine, together with the agent's code.

The controller does not trust the kernel, because the agent's code can read its connection key and
forge its sockets and messages. This module imports only packages of the session's environment.
"""

import gc
import importlib
import json
import os
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Generator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import FrameType
from typing import Any, cast

gc.disable()  # imports leave hardly any garbage, and collecting it takes a tenth of their time

from ipykernel import kernelapp  # noqa: E402
from ipykernel.iostream import IOPubThread, OutStream  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from jupyter_client.jsonutil import json_clean, json_default  # noqa: E402
from jupyter_client.session import json_packer  # noqa: E402
from traitlets.config import Config  # noqa: E402

CHUNK = 512 * 1024
READY = b"seer-kernel-ready\n"
PATIENCE = 2.5
"""Seconds until a further interrupt ends an import; the session kills the kernel after five."""


class ChunkedOutStream(OutStream):
    """Sends long text as several messages, so that none exceeds the client's limit."""

    def _flush_buffers(self) -> Generator[tuple[dict[str, Any], str], Any, None]:
        for parent, data in super()._flush_buffers():  # pyright: ignore[reportUnknownVariableType]
            for start in range(0, len(data), CHUNK):
                yield parent, data[start : start + CHUNK]

    def write(self, string: str) -> int | None:
        """Print. A forked child prints through the descriptor, which this process reads."""
        if self._is_master_process():
            return super().write(string)
        os.write(self._original_stdstream_fd, string.encode(errors="replace"))
        return len(string)


class LocalIOPubThread(IOPubThread):
    """Publishes without the TCP port that forked children would send their output to.

    A jail can lack a network, and the library ends the process if it cannot open the port. Children
    print through their descriptors instead.
    """

    def __init__(self, socket: Any, pipe: bool = False, **more: Any) -> None:
        super().__init__(socket, pipe=False, **more)  # ipykernel 7 passes its session, 6 does not

    def _really_send(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        if os.getpid() == self._master_pid:  # sockets do not survive a fork
            super()._really_send(msg, *args, **kwargs)  # pyright: ignore[reportUnknownMemberType]


class KernelApp(IPKernelApp):
    """An IPython kernel on Unix sockets, without the debugger's extra connection."""

    def init_control(self, context: Any) -> None:
        shell, self.shell_socket = self.shell_socket, _NoEndpoint()
        try:
            super().init_control(context)  # pyright: ignore[reportUnknownMemberType]
        finally:
            self.shell_socket = shell

    def init_iopub(self, context: Any) -> None:
        # Output must not be dropped while the client is busy; the machine limits the memory.
        context.sndhwm = 0
        kernelapp.IOPubThread = LocalIOPubThread  # pyright: ignore[reportPrivateImportUsage]
        super().init_iopub(context)  # pyright: ignore[reportUnknownMemberType]


class _NoEndpoint:
    """Replaces the shell socket while the debugger looks for a socket to connect to.

    A jail can refuse every `connect`, and then the client would retry forever.
    """

    def getsockopt(self, option: int) -> bytes:
        return b""


class Interrupts:
    """Raises a keyboard interrupt only inside the agent's code.

    The library raises it anywhere in the main thread while a request is handled. Outside the
    agent's code, that ends the kernel.

    An interrupt that arrives during the import of an installed package is raised when the import
    has ended. Python forgets a module whose import fails, but its submodules and C extensions stay
    loaded, and packages such as numpy and torch cannot be imported twice in a process. A further
    interrupt ends an import that takes longer than `PATIENCE`.
    """

    def __init__(self, kernel: Any) -> None:
        self._handling = False
        self._running = False
        self._early = False
        self._deferred: float | None = None
        """When the interrupt arrived that is still to be raised; None if there is none."""
        self._run = kernel.shell.run_ast_nodes
        self._shell = kernel.shell
        kernel.pre_handler_hook = self._begin
        kernel.post_handler_hook = self._end
        kernel.shell.run_ast_nodes = self._run_ast_nodes
        signal.signal(signal.SIGINT, self._interrupt)

    def _begin(self) -> None:
        self._handling, self._early, self._deferred = True, False, None

    def _end(self) -> None:
        self._handling = False

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if not self._running:
            self._early = self._handling
            return
        protected = outermost_protected(frame)
        if protected is None:
            raise KeyboardInterrupt
        if self._deferred is None:
            self._deferred = time.monotonic()
        if time.monotonic() - self._deferred < PATIENCE:
            self._raise_at_end(protected)
            return
        sys.setprofile(None)
        name = protected.f_locals.get("name")
        raise KeyboardInterrupt(
            f"during the import of {name}; if it cannot be imported again, restart the kernel"
        )

    def _raise_at_end(self, protected: FrameType) -> None:
        """Raise the interrupt when the function of this frame returns or raises."""

        def profile(frame: FrameType, event: str, _: Any) -> None:
            if frame is protected and event == "return":
                sys.setprofile(None)
                self._deferred = None
                raise KeyboardInterrupt

        # Unlike a trace function, a profile function also sees the end of frames that already run.
        sys.setprofile(profile)

    async def _run_ast_nodes(
        self, nodelist: Any, cell_name: str, *args: Any, result: Any = None, **kwargs: Any
    ) -> bool:
        try:
            self._running = True
            if self._early:
                raise KeyboardInterrupt
            return await self._run(nodelist, cell_name, *args, result=result, **kwargs)
        except KeyboardInterrupt as error:
            self._running = False
            self._shell.showtraceback()
            if result is not None:
                result.error_in_exec = error
            return True
        finally:
            self._running = False


class ToolCalls:
    """Tells the gate's client which of the agent's tool calls a cell belongs to.

    The request that runs the cell names the tool call. A cell that a person runs belongs to none.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._begin: Callable[[str], None] | None = None
        kernel.shell.events.register("pre_execute", self._before_cell)

    def _before_cell(self) -> None:
        tool_call = self._kernel.get_parent("shell").get("metadata", {}).get("seer_tool_call", "")
        if self._begin is None and tool_call:
            try:
                self._begin = importlib.import_module("_seer_gate.rpc.client._tool_call").begin
            except ImportError:
                return  # the session has no served library
        if self._begin is not None:
            self._begin(tool_call)


def outermost_protected(frame: FrameType | None) -> FrameType | None:
    """The outermost frame that must not be interrupted, if there is one.

    Frames that load an installed module are protected, and so is the import system itself, which
    holds locks of all threads. Modules of the workspace are not protected: they can be imported
    again, and the interrupt may be meant for them.
    """
    found = None
    innermost = True
    while frame is not None:
        code = frame.f_code
        imports = code.co_filename.startswith("<frozen importlib.")
        innermost = innermost and imports
        if innermost:
            found = frame
        # This frame also binds the module to its package, after the module's code has run.
        elif code.co_name == "_find_and_load_unlocked" and imports:
            origin = getattr(frame.f_locals.get("spec"), "origin", None)
            if isinstance(origin, str) and is_installed(origin):
                found = frame
        frame = frame.f_back
    return found


def is_installed(file: str) -> bool:
    """Whether a module's file belongs to Python or to a package, or is a C extension."""
    folders = Path(file).parts
    return (
        "site-packages" in folders
        or "dist-packages" in folders
        or Path(file).is_relative_to(sysconfig.get_path("stdlib"))
        or file.endswith(tuple(EXTENSION_SUFFIXES))
    )


def pack(message: Any) -> bytes:
    """A message as JSON, with lone surrogates escaped, which UTF-8 cannot encode."""
    try:
        return json_packer(message)
    except UnicodeEncodeError:
        return json.dumps(json_clean(message), default=json_default).encode()


def main() -> None:
    """Start the kernel described by the JSON object on standard input."""
    settings = json.loads(sys.stdin.readline())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # processes of the agent must read an end of file
    os.close(nothing)
    workdir = Path.cwd()
    folder = Path(settings["folder"])
    # Relative socket paths are short; the limit is 107 bytes.
    os.chdir(folder)
    config = Config()
    config.Session.key = settings["key"].encode()
    config.Session.packer = f"{__name__}.pack"
    config.KernelApp.connection_file = str(folder / "connection.json")
    config.KernelApp.transport = "ipc"
    config.KernelApp.ip = "z"
    config.KernelApp.outstream_class = ChunkedOutStream.__module__ + ".ChunkedOutStream"
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.banner1 = ""
    (folder / "profile").mkdir()
    config.ProfileDir.location = str(folder / "profile")
    ready = os.dup(1)
    app = KernelApp.instance(config=config, log_level="CRITICAL")
    for index, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1):
        setattr(app, f"{name}_port", index)
    # The debugger has nothing to connect to here, and importing it would take a sixth of the
    # start-up time.
    cast("Any", sys.modules)["debugpy"] = None
    app.initialize([])  # pyright: ignore[reportUnknownMemberType]
    del sys.modules["debugpy"]
    Interrupts(cast("Any", app).kernel)
    ToolCalls(cast("Any", app).kernel)
    os.chdir(workdir)
    # Libraries come first, and this file's own folder is removed.
    sys.path[:] = [*settings["path"], *(p for p in sys.path if p != str(Path(__file__).parent))]
    gc.freeze()
    gc.enable()
    os.write(ready, READY)
    os.close(ready)
    app.start()


if __name__ == "__main__":
    errors = os.dup(2)  # the kernel redirects descriptor 2 to the output of cells
    try:
        main()
    except BaseException:
        os.write(errors, traceback.format_exc().encode(errors="replace"))
        # The library's threads would keep the process alive if the kernel failed to start.
        os._exit(1)
