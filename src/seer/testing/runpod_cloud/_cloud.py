"""The cloud as a whole: started in a thread of its own, ended with everything in it."""

import asyncio
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from seer.errors import SeerError
from seer.testing.containers import ContainerError, LayerStore, bare_image, supported
from seer.testing.runpod_cloud._api import Api, Server
from seer.testing.runpod_cloud._graphql import Json
from seer.testing.runpod_cloud._pods import Faults, Pods, map_ssh_port

T = TypeVar("T")
_PATIENCE = 60.0


class RunPodCloud:
    """A stand-in for RunPod on loopback.

    Example:
        with RunPodCloud() as cloud:
            os.environ.update(cloud.environment)
            Sandbox(SandboxConfig(provider="runpod", gpu="A40")).start()

    Its pods are containers of this host with a real SSH server, so it needs root and OpenSSH. It
    listens on 127.0.0.1 only and lets in one key, made anew each time, and each pod's own.
    """

    def __init__(self) -> None:
        """Describe it; nothing starts before it is entered."""
        self.faults = Faults()
        self._folder = Path()
        self._key = f"rpa_{secrets.token_hex(20)}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pods: Pods | None = None
        self._api: Api | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            ContainerError: Containers cannot be made here, or there is no SSH server.
        """
        reason = supported()
        if reason is None and not Path("/usr/sbin/sshd").exists():
            reason = "there is no /usr/sbin/sshd (openssh-server)"
        if reason is not None:
            raise ContainerError(f"the loopback RunPod needs containers: {reason}")
        self._folder = Path(tempfile.mkdtemp(prefix="seer-runpod-"))
        ready = threading.Event()
        failed: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._run, args=[ready, failed], name="runpod-cloud", daemon=True
        )
        self._thread.start()
        if not ready.wait(_PATIENCE) or failed:
            self.__exit__(None, None, None)
            raise SeerError("the loopback RunPod did not start") from (failed or [None])[0]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it and everything in it."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_PATIENCE)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead to it."""
        return {"RUNPOD_API_BASE_URL": self._must(self._pods).url, "RUNPOD_API_KEY": self._key}

    @property
    def running(self) -> list[str]:
        """The ids of pods that are still paid for."""
        return self._call(lambda: [pod.id for pod in self._must(self._pods).running()])

    @property
    def requests(self) -> list[str]:
        """The top field of every request so far."""
        return list(self._must(self._api).requests)

    def request_of(self, pod_id: str) -> dict[str, Json]:
        """What a pod was asked for with."""
        return self._call(lambda: dict(self._must(self._pods).by_id[pod_id].request))

    def preempt(self, pod_id: str) -> None:
        """Take a pod away."""
        self._call(lambda: self._must(self._pods).end(pod_id))

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._must(self._loop)).result(_PATIENCE)

    def _must(self, value: T | None) -> T:
        if value is None:
            raise SeerError("the loopback RunPod is not running; enter it first")
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
        store = LayerStore(self._folder / "layers")
        image = await bare_image(store, folder=self._folder / "bare")
        await asyncio.to_thread(map_ssh_port, image)
        pods = self._pods = Pods(
            store, image, folder=self._folder / "containers", faults=self.faults
        )
        self._api = Api(pods, key=self._key, faults=self.faults)
        server = Server(self._api, self._loop)
        pods.url = f"http://127.0.0.1:{server.server_address[1]}"
        serving = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        serving.start()
        ready.set()
        try:
            await self._stop.wait()
        finally:
            await pods.close()
            await asyncio.to_thread(server.shutdown)
            server.server_close()
