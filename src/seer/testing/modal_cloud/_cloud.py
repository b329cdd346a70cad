"""The cloud as a whole: started in a thread of its own, ended with everything in it."""

import asyncio
import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from grpclib._typing import IServable
from grpclib.protocol import H2Protocol
from grpclib.server import Server
from modal_proto import api_pb2

from seer.errors import SeerError
from seer.testing.containers import ContainerError, LayerStore, bare_image, supported
from seer.testing.modal_cloud._control import ControlPlane
from seer.testing.modal_cloud._images import Images
from seer.testing.modal_cloud._router import CommandRouter
from seer.testing.modal_cloud._sandboxes import Sandboxes
from seer.testing.modal_cloud._state import Account, Faults
from seer.testing.modal_cloud._tokens import Tokens

T = TypeVar("T")
_PATIENCE = 60.0


class _Server(Server):
    """A server that can hang up: the library's own only stops to answer."""

    def __init__(self, services: Sequence[IServable]) -> None:
        super().__init__(services)
        self._protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        self._protocols.append(made)
        return made

    def hang_up(self) -> None:
        """Close every connection."""
        for protocol in self._protocols:
            if hasattr(protocol, "connection"):
                protocol.connection.close()


class ModalCloud:
    """A stand-in for Modal on loopback, for the real `modal` SDK.

    Example:
        with ModalCloud() as cloud:
            os.environ.update(cloud.environment)
            Sandbox(SandboxConfig(provider="modal", gpu=None)).start()

    Its sandboxes are containers of this host, so it needs root. It listens on 127.0.0.1 only and
    lets in one token, made anew each time.
    """

    def __init__(self) -> None:
        """Describe it; nothing starts before it is entered."""
        self.faults = Faults()
        self._folder = Path()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._account: Account | None = None
        self._control: ControlPlane | None = None
        self._sandboxes: Sandboxes | None = None
        self._images: Images | None = None
        self._tokens = Tokens()
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            ContainerError: Containers cannot be made here.
        """
        reason = supported()
        if reason is not None:
            raise ContainerError(f"the loopback Modal needs containers: {reason}")
        self._folder = Path(tempfile.mkdtemp(prefix="seer-modal-"))
        ready = threading.Event()
        failed: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._run, args=[ready, failed], name="modal-cloud", daemon=True
        )
        self._thread.start()
        if not ready.wait(_PATIENCE) or failed:
            self.__exit__(None, None, None)
            raise SeerError("the loopback Modal did not start") from (failed or [None])[0]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it and everything in it."""
        if self._loop is not None and self._thread is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_PATIENCE)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead Modal's SDK here."""
        account = self._must(self._account)
        return {
            "MODAL_SERVER_URL": self._tokens.url,
            "MODAL_TOKEN_ID": account.token_id,
            "MODAL_TOKEN_SECRET": account.token_secret,
        }

    @property
    def running(self) -> list[str]:
        """The ids of sandboxes that have not ended."""
        return self._call(lambda: [s.id for s in self._must(self._sandboxes).running()])

    @property
    def builds_started(self) -> int:
        """How many image layers were built for real."""
        return self._must(self._images).builds_started

    def definition(self, sandbox_id: str) -> api_pb2.Sandbox:
        """What a sandbox was created with."""
        return self._call(lambda: self._must(self._sandboxes).get(sandbox_id).definition)

    def tags(self, sandbox_id: str) -> dict[str, str]:
        """A sandbox's tags."""
        return self._call(lambda: dict(self._must(self._sandboxes).get(sandbox_id).tags))

    def preempt(self, sandbox_id: str) -> None:
        """Take a sandbox's machine away."""
        status = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED
        words = "The worker was preempted."
        self._call(lambda: self._must(self._sandboxes).get(sandbox_id).end(status, words))

    def volume(self, name: str) -> Path:
        """Where the files of a named volume are on this host."""
        account = self._must(self._account)
        return account.volume_folder(account.volumes.get_or_create(name, create=False))

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._await(call)

    def _await(self, function: Callable[[], Awaitable[T]]) -> T:
        async def call() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(call(), self._must(self._loop)).result(_PATIENCE)

    def _must(self, value: T | None) -> T:
        if value is None:
            raise SeerError("the loopback Modal is not running; enter it first")
        return value

    def _run(self, ready: threading.Event, failed: list[BaseException]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            failed.append(error)
            ready.set()
            raise

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._account = Account(self._folder)
        store = LayerStore(self._folder / "layers")
        bare = await bare_image(store, folder=self._folder / "bare")
        work = self._folder / "containers"
        images = self._images = Images(store, bare, work, self.faults)
        sandboxes = self._sandboxes = Sandboxes(
            self._account, images, store, folder=work, faults=self.faults
        )
        control = ControlPlane(
            self._account, images, sandboxes, tokens=self._tokens, faults=self.faults
        )
        router = CommandRouter(
            sandboxes, control.environment, tokens=self._tokens, faults=self.faults
        )
        server = _Server([control, router])
        listener = socket.create_server(("127.0.0.1", 0))
        await server.start(sock=listener)
        self._tokens.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._control = control
        ready.set()
        await self._stop.wait()
        await sandboxes.close()
        await images.close()
        server.close()
        await server.wait_closed()
        server.hang_up()
        # Transports close on the loop's next turn.
        await asyncio.sleep(0)
