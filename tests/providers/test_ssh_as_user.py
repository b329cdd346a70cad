"""An ordinary user of a host gets the same machines, with another interpreter."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract
from tests.support.sshd import SshServer

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can let somebody else log in"),
]

_AS_USER = (
    "exec_gives_output_and_exit_code",
    "the_hosts_environment_does_not_reach_the_machine",
    "secrets_stand_on_no_command_line_and_in_no_file",
    "large_output_arrives_whole",
    "killing_a_command_kills_the_whole_tree",
    "a_terminal_is_a_terminal",
    "odd_names_work_everywhere",
    "modes_are_kept",
    "the_systems_files_cannot_be_written",
    "deep_and_locked_trees_can_be_removed",
    "large_files_arrive_whole",
    "unix_sockets_in_the_machine_can_be_reached",
    "a_planted_link_leads_nowhere",
    "programs_in_the_machine_can_connect_out_to_a_listener",
    "gates_of_the_spec_can_be_reached_from_inside",
    "a_running_machine_is_listed",
    "machines_do_not_see_each_other",
    "terminating_ends_everything_and_twice_is_harmless",
    "a_machine_can_be_found_from_this_process",
    "memory_is_limited",
    "disk_is_limited",
)


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Generator[ProviderContract]:
    with SshServer(ordinary=True) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name, value in server.environment().items():
            patch.setenv(name, value)
        spec = MachineSpec(isolation="bubblewrap")
        made = ProviderContract(get_provider("ssh"), spec=spec, large=8 << 20)
        yield made
        made.close()
        assert list(Path(server.root, "state/seer/machines").iterdir()) == []


@pytest.mark.parametrize("name", _AS_USER)
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)
