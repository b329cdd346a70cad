"""Machines on an SSH host pass the contract of every provider."""

from collections.abc import Generator
from pathlib import Path

import pytest

from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract
from tests.support.sshd import SshServer

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Generator[ProviderContract]:
    with SshServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name, value in server.environment().items():
            patch.setenv(name, value)
        spec = MachineSpec(isolation="bubblewrap")
        made = ProviderContract(get_provider("ssh"), spec=spec, large=64 << 20)
        yield made
        made.close()
        assert list(Path(server.root, "state/seer/machines").iterdir()) == []


@pytest.mark.parametrize("name", ProviderContract.names())
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)
