"""The same suites with real accounts: `pytest -m live`, with Modal's or RunPod's credentials set.

Every check rents real machines. They end with the checks; machines that a killed run leaves behind
end within their lease.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract
from tests.providers.test_modal_contract import DEVIATIONS as MODAL_DEVIATIONS
from tests.providers.test_runpod_contract import DEVIATIONS as RUNPOD_DEVIATIONS
from tests.support.remote_contract import RemoteContract

pytestmark = pytest.mark.live

_DEVIATIONS = {"modal": MODAL_DEVIATIONS, "runpod": RUNPOD_DEVIATIONS}
_START_TIMEOUT = 900.0


def _provider(name: str) -> str:
    reason = get_provider(name).unavailable()
    if reason is not None or os.environ.get("MODAL_SERVER_URL", "").startswith("http://127."):
        pytest.skip(reason or "this is not the real Modal")
    return name


@pytest.fixture(scope="module", params=["modal", "runpod"])
def contract(request: pytest.FixtureRequest) -> Generator[ProviderContract]:
    name = _provider(request.param)
    made = ProviderContract(
        get_provider(name),
        spec=MachineSpec(start_timeout=_START_TIMEOUT),
        deviations=_DEVIATIONS[name],
        large=8 << 20,
    )
    yield made
    made.close()


@pytest.mark.parametrize("name", ProviderContract.names())
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)


@pytest.fixture(scope="module", params=["modal", "runpod"])
def remote(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[RemoteContract]:
    folder: Path = tmp_path_factory.mktemp("live")
    made = RemoteContract(_provider(request.param), folder=folder / "files", gpu="L4")
    yield made
    made.close()


# A hub on this computer's loopback cannot be reached from a vendor's machine.
_OF_THE_HUB = ("models_are_downloaded_on_the_host", "models_are_found_by_their_variables")


@pytest.mark.parametrize(
    "name", [name for name in RemoteContract.names(cuts=False) if name not in _OF_THE_HUB]
)
def test_remote(remote: RemoteContract, name: str) -> None:
    remote.run(name)
