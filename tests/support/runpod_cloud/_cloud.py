"""The cloud as a whole."""

import asyncio
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

from seer.errors import SeerError
from tests.support.containers import LayerStore, LoopbackCloud, bare_image
from tests.support.runpod_cloud._api import Api, Server
from tests.support.runpod_cloud._graphql import Json
from tests.support.runpod_cloud._pods import Faults, Pods, map_ssh_port


class RunPodCloud(LoopbackCloud):
    """A stand-in for RunPod on loopback.

    Example:
        with RunPodCloud() as cloud:
            os.environ.update(cloud.environment)
            Sandbox(SandboxConfig(provider="runpod", gpu="A40")).start()

    Its pods are containers of this host with a real SSH server, so it needs root and OpenSSH. It
    listens on 127.0.0.1 only and accepts one key, which is new each time, and each pod's own key.
    """

    vendor = "RunPod"

    def __init__(self) -> None:
        """Set it up; nothing starts before it is entered."""
        super().__init__()
        self.faults = Faults()
        self._key = f"rpa_{secrets.token_hex(20)}"
        self._parts: tuple[Pods, Api] | None = None

    def _needs(self) -> str | None:
        if not Path("/usr/sbin/sshd").exists():
            return "there is no /usr/sbin/sshd (openssh-server)"
        return super()._needs()

    @property
    def _running(self) -> tuple[Pods, Api]:
        if self._parts is None:
            raise SeerError("the loopback RunPod is not running; enter it first")
        return self._parts

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead to it."""
        return {"RUNPOD_API_BASE_URL": self._running[0].url, "RUNPOD_API_KEY": self._key}

    @property
    def running(self) -> list[str]:
        """The ids of pods that are still paid for."""
        return self.call(lambda: [pod.id for pod in self._running[0].running()])

    @property
    def requests(self) -> list[str]:
        """The top field of every request so far."""
        return list(self._running[1].requests)

    def request_of(self, pod_id: str) -> dict[str, Json]:
        """The arguments with which a pod was requested."""
        return self.call(lambda: dict(self._running[0].by_id[pod_id].request))

    def preempt(self, pod_id: str) -> None:
        """Take a pod away."""
        self.call(lambda: self._running[0].end(pod_id))

    async def _serve(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        store = LayerStore(self.folder / "layers")
        image = await bare_image(store, folder=self.folder / "bare")
        await asyncio.to_thread(map_ssh_port, image)
        pods = Pods(store, image, folder=self.folder / "containers", faults=self.faults)
        api = Api(pods, key=self._key, faults=self.faults)
        server = Server(api, asyncio.get_running_loop())
        pods.url = f"http://127.0.0.1:{server.server_address[1]}"
        serving = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        serving.start()
        self._parts = pods, api
        ready()
        try:
            await stop.wait()
        finally:
            await pods.close()
            await asyncio.to_thread(server.shutdown)
            server.server_close()
