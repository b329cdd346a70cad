"""All uses of a sandbox work at RunPod, with its API on loopback and real SSH."""

from collections.abc import Generator

import pytest

from tests.selection import part
from tests.support.containers import supported
from tests.support.remote_contract import RemoteContract
from tests.support.runpod_cloud import RunPodCloud

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Generator[RemoteContract]:
    folder = tmp_path_factory.mktemp("remote")
    with RunPodCloud() as cloud, pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "HF_HOME"):
            patch.setenv(name, str(folder / name.lower()))
        for name, value in cloud.environment.items():
            patch.setenv(name, value)
        patch.setenv("SEER_CONTRACT_SECRET", "of-the-contract")
        made = RemoteContract("runpod", folder=folder / "files")
        patch.setenv("HF_ENDPOINT", made.hub_url)
        yield made
        made.close()
        assert cloud.running == []


# The rest takes the same path as with `ssh`, which passes all checks.
CHOSEN = {
    "a_sandbox_runs_commands_python_and_files",
    "a_person_can_call_what_is_served",
    "a_jail_of_this_host_can_call_what_is_served",
    "agents_see_no_way_to_the_host",
    "models_are_downloaded_on_the_host",
    "another_process_can_find_list_and_end_a_sandbox",
}


@pytest.mark.parametrize("name", part(RemoteContract.names(cuts=False), CHOSEN))
def test_remote(contract: RemoteContract, name: str) -> None:
    contract.run(name)
