"""The Modal provider keeps the contract: the real SDK, against Modal's protocol on loopback."""

from collections.abc import Generator

import pytest

from seer.providers import MachineSpec, get_provider
from seer.testing.containers import supported
from seer.testing.modal_cloud import ModalCloud
from seer.testing.provider_contract import ProviderContract, _lifetime
from tests.selection import part

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]

DEVIATIONS: dict[str, str] = {}
# How machines begin and end is Modal's own. Commands, files and sockets go the same way as with
# `ssh`, which is put through every check.
_LIFETIME = [check.__name__ for check in _lifetime.CHECKS]
_OTHERS = [name for name in ProviderContract.names() if name not in _LIFETIME]


@pytest.fixture(scope="module")
def contract() -> Generator[ProviderContract]:
    with ModalCloud() as cloud, pytest.MonkeyPatch.context() as patch:
        for name, value in cloud.environment.items():
            patch.setenv(name, value)
        made = ProviderContract(
            get_provider("modal"),
            spec=MachineSpec(start_timeout=60.0),
            deviations=DEVIATIONS,
            large=24 << 20,
        )
        yield made
        made.close()


@pytest.mark.parametrize("name", part(ProviderContract.names(), {*_LIFETIME, *_OTHERS[4::8]}))
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)
