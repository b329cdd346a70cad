"""The RunPod provider keeps the contract, against its API on loopback and a real SSH server."""

from collections.abc import Generator

import pytest

from seer.providers import MachineSpec, get_provider
from seer.testing.containers import supported
from seer.testing.provider_contract import ProviderContract, _lifetime
from seer.testing.runpod_cloud import RunPodCloud

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]

DEVIATIONS: dict[str, str] = {
    "ports_in_the_machine_can_be_reached": (
        "a pod's root may not make networks, so network='none' means no internet sockets at all"
    ),
}
_LIFETIME = [check.__name__ for check in _lifetime.CHECKS]
# Commands, files and sockets go the same way as with `ssh`, which is put through every check; all
# of them are tried here by the campaign (benchmarks/campaign_rented.py --contract).
_OTHERS = [name for name in ProviderContract.names() if name not in _LIFETIME]
NAMES = [*_LIFETIME, *sorted({*_OTHERS[::8], *DEVIATIONS})]


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


@pytest.mark.parametrize("name", NAMES)
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)
