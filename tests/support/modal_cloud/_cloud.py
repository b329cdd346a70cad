"""The cloud as a whole."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import modal
from grpclib._typing import IServable
from grpclib.protocol import H2Protocol
from grpclib.server import Server
from modal_proto import api_pb2

from seer.errors import SeerError
from tests.support.containers import LayerStore, LoopbackCloud, bare_image
from tests.support.modal_cloud._control import ControlPlane
from tests.support.modal_cloud._images import Images
from tests.support.modal_cloud._router import CommandRouter
from tests.support.modal_cloud._sandboxes import Sandboxes
from tests.support.modal_cloud._state import Account, Faults
from tests.support.modal_cloud._tokens import Tokens


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


class ModalCloud(LoopbackCloud):
    """A stand-in for Modal on loopback, for the real `modal` SDK.

    Example:
        with ModalCloud() as cloud:
            os.environ.update(cloud.environment)
            Sandbox(SandboxConfig(provider="modal", gpu=None)).start()

    Its sandboxes are containers of this host, so it needs root. It listens on 127.0.0.1 only and
    accepts one token, which is new each time.
    """

    vendor = "Modal"

    def __init__(self) -> None:
        """Set it up; nothing starts before it is entered."""
        super().__init__()
        self.faults = Faults()
        self._tokens = Tokens()
        self._parts: _Parts | None = None

    def __enter__(self) -> Self:
        """Start it."""
        _forget_client()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it and everything in it."""
        super().__exit__(kind, error, traceback)
        _forget_client()

    @property
    def _running(self) -> "_Parts":
        if self._parts is None:
            raise SeerError("the loopback Modal is not running; enter it first")
        return self._parts

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead Modal's SDK here."""
        account = self._running.account
        return {
            "MODAL_SERVER_URL": self._tokens.url,
            "MODAL_TOKEN_ID": account.token_id,
            "MODAL_TOKEN_SECRET": account.token_secret,
        }

    @property
    def running(self) -> list[str]:
        """The ids of sandboxes that have not ended."""
        return self.call(lambda: [s.id for s in self._running.sandboxes.running()])

    @property
    def builds_started(self) -> int:
        """How many image layers were built for real."""
        return self._running.images.builds_started

    def definition(self, sandbox_id: str) -> api_pb2.Sandbox:
        """The arguments with which a sandbox was created."""
        return self.call(lambda: self._running.sandboxes.get(sandbox_id).definition)

    def tags(self, sandbox_id: str) -> dict[str, str]:
        """A sandbox's tags."""
        return self.call(lambda: dict(self._running.sandboxes.get(sandbox_id).tags))

    def preempt(self, sandbox_id: str) -> None:
        """Take a sandbox's machine away."""
        status = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED
        words = "The worker was preempted."
        self.call(lambda: self._running.sandboxes.get(sandbox_id).end(status, words))

    def volume(self, name: str) -> Path:
        """Where the files of a named volume are on this host."""
        account = self._running.account
        return account.volume_folder(account.volumes.get_or_create(name, create=False))

    async def _serve(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        account = Account(self.folder)
        store = LayerStore(self.folder / "layers")
        bare = await bare_image(store, folder=self.folder / "bare")
        work = self.folder / "containers"
        images = Images(store, bare, work, self.faults)
        sandboxes = Sandboxes(account, images, store, folder=work, faults=self.faults)
        control = ControlPlane(account, images, sandboxes, tokens=self._tokens, faults=self.faults)
        router = CommandRouter(
            sandboxes, control.environment, tokens=self._tokens, faults=self.faults
        )
        server = _Server([control, router])
        listener = socket.create_server(("127.0.0.1", 0))
        await server.start(sock=listener)
        self._tokens.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._parts = _Parts(account, images, sandboxes)
        ready()
        await stop.wait()
        await sandboxes.close()
        await images.close()
        server.close()
        await server.wait_closed()
        server.hang_up()
        # Transports close on the loop's next turn.
        await asyncio.sleep(0)


@dataclass(frozen=True)
class _Parts:
    account: Account
    images: Images
    sandboxes: Sandboxes


def _forget_client() -> None:
    """The SDK keeps one client per process, with the address that it first found."""
    client: Any = modal.Client
    client.set_env_client(None)
