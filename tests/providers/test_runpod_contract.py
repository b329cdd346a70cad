"""The RunPod provider keeps the contract, against its API on loopback and a real SSH server."""

from collections.abc import Generator

import pytest

from seer.providers import MachineSpec, get_provider
from seer.testing.containers import supported
from seer.testing.provider_contract import ProviderContract
from seer.testing.runpod_cloud import RunPodCloud

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]

DEVIATIONS: dict[str, str] = {}


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


@pytest.mark.parametrize("name", ProviderContract.names())
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)
