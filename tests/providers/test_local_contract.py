"""The local provider passes the contract, on both jail backends."""

from collections.abc import Generator

import pytest

from seer.isolation import BackendName
from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract

pytestmark = pytest.mark.full

_NO_CONNECT = "a landlock jail has no network of its own, so connect() and ports are closed to it"
DEVIATIONS: dict[BackendName, dict[str, str]] = {
    "bubblewrap": {},
    "landlock": {
        "ports_in_the_machine_can_be_reached": _NO_CONNECT,
        "programs_in_the_machine_can_connect_out_to_a_listener": _NO_CONNECT,
        "a_listener_cannot_take_a_name_that_is_in_use": _NO_CONNECT,
    },
}


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def contract(request: pytest.FixtureRequest) -> Generator[ProviderContract]:
    backend: BackendName = request.param
    made = ProviderContract(
        get_provider("local"),
        spec=MachineSpec(isolation=backend),
        deviations=DEVIATIONS[backend],
    )
    yield made
    made.close()


@pytest.mark.parametrize("name", ProviderContract.names())
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)
