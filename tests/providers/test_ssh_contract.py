"""Machines on a host that is reached with SSH keep the contract of every provider.

All of it for root, and what does not take long for an ordinary user, who has another interpreter.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract
from seer.testing.sshd import SshServer

pytestmark = pytest.mark.full

_SLOW = {
    "a_detached_machine_needs_no_controller",
    "a_killed_controller_takes_its_machine_along",
    "a_machine_can_be_adopted_from_another_process",
    "a_machine_with_two_holders_ends_with_the_last",
    "a_silent_controller_loses_its_lease",
    "a_timeout_kills_the_whole_tree",
    "an_idle_machine_ends_and_a_busy_one_does_not",
    "processes_are_limited",
    "the_timeout_ends_a_machine",
}


def _contract(server: SshServer, folder: Path, *, large: int) -> Generator[ProviderContract]:
    with server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        for name, value in server.environment().items():
            patch.setenv(name, value)
        spec = MachineSpec(isolation="bubblewrap")
        made = ProviderContract(get_provider("ssh"), spec=spec, large=large)
        yield made
        made.close()
        assert list(Path(server.root, "state/seer/machines").iterdir()) == []


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Generator[ProviderContract]:
    yield from _contract(SshServer(), tmp_path_factory.mktemp("state"), large=64 << 20)


@pytest.fixture(scope="module")
def as_user(tmp_path_factory: pytest.TempPathFactory) -> Generator[ProviderContract]:
    server = SshServer(ordinary=True)
    yield from _contract(server, tmp_path_factory.mktemp("state-user"), large=8 << 20)


@pytest.mark.xdist_group("ssh-contract")
@pytest.mark.parametrize("name", ProviderContract.names())
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)


@pytest.mark.xdist_group("ssh-contract-user")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can let somebody else log in")
@pytest.mark.parametrize("name", [name for name in ProviderContract.names() if name not in _SLOW])
def test_contract_as_an_ordinary_user(as_user: ProviderContract, name: str) -> None:
    as_user.run(name)
