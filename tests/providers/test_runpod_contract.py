"""The RunPod provider passes the contract, with its API on loopback and a real SSH server."""

from collections.abc import Generator

import pytest

from seer.errors import PauseUnsupportedError
from seer.providers import MachineSpec, get_provider
from seer.testing import on_loop
from seer.testing.provider_contract import ProviderContract
from tests.selection import part
from tests.support.containers import supported
from tests.support.runpod_cloud import RunPodCloud

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]

_NO_PAUSE = (
    "RunPod: 'Stopping a Pod releases the GPU and preserves data in /workspace (volume disk)' "
    "(docs.runpod.io/pods/manage-pods); memory is not kept"
)
DEVIATIONS: dict[str, str] = {
    "pausing_stops_all_work_and_resuming_goes_on": _NO_PAUSE,
    "a_paused_machine_can_be_terminated": _NO_PAUSE,
    "a_paused_machine_ends_with_its_controller": _NO_PAUSE,
    "ports_in_the_machine_can_be_reached": (
        "a pod's root may not make networks, so network='none' means no internet sockets at all"
    ),
}
# Commands, files and sockets take the same path as with `ssh`, which passes every check.
_BEGIN = ProviderContract.names().index("a_running_machine_is_listed")
_OTHERS, _LIFETIME = ProviderContract.names()[:_BEGIN], ProviderContract.names()[_BEGIN:]


@pytest.fixture(scope="module")
def contract() -> Generator[ProviderContract]:
    with RunPodCloud() as cloud, pytest.MonkeyPatch.context() as patch:
        for name, value in cloud.environment.items():
            patch.setenv(name, value)
        made = ProviderContract(
            get_provider("runpod"),
            spec=MachineSpec(start_timeout=60.0),
            deviations=DEVIATIONS,
            large=24 << 20,
        )
        yield made
        made.close()


@pytest.mark.parametrize(
    "name", part(ProviderContract.names(), {*_LIFETIME, *_OTHERS[::8], *DEVIATIONS})
)
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)


async def test_a_pause_is_refused_with_the_reason_and_the_machine_goes_on(
    contract: ProviderContract,
) -> None:
    machine = await on_loop(get_provider("runpod").start(MachineSpec(start_timeout=60.0)))
    try:
        with pytest.raises(PauseUnsupportedError, match="keeps only the volume disk"):
            await on_loop(machine.pause())
        assert (await on_loop(machine.exec(["echo", "on"]))).stdout == b"on\n"
    finally:
        await on_loop(machine.terminate())
