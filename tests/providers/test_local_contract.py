"""The local provider passes the contract, on both jail backends."""

import os
from collections.abc import Generator

import pytest

from seer.isolation import BackendName
from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract

pytestmark = pytest.mark.full

_NO_CONNECT = "a landlock jail has no network of its own, so connect() and ports are closed to it"
_NO_TERMINAL = "a landlock jail of an ordinary user has no /dev/pts of its own, so no terminals"
DEVIATIONS: dict[BackendName, dict[str, str]] = {
    "bubblewrap": {},
    "landlock": {
        "ports_in_the_machine_can_be_reached": _NO_CONNECT,
        "programs_in_the_machine_can_connect_out_to_a_listener": _NO_CONNECT,
        "a_listener_cannot_take_a_name_that_is_in_use": _NO_CONNECT,
    },
}
if os.geteuid() != 0:
    for _check in ("a_terminal_is_a_terminal", "control_c_in_a_terminal_interrupts"):
        DEVIATIONS["landlock"][_check] = _NO_TERMINAL


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> BackendName:
    return request.param


@pytest.fixture(scope="module")
def contract(backend: BackendName) -> Generator[ProviderContract]:
    made = ProviderContract(
        get_provider("local"),
        spec=MachineSpec(isolation=backend),
        deviations=DEVIATIONS[backend],
    )
    yield made
    made.close()


# Until the watchdog ends it, the fork bomb in a landlock jail uses up the processes of all jails of
# the user.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.alone) if name == "processes_are_limited" else name
        for name in ProviderContract.names()
    ],
)
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)
