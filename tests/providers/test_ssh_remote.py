"""All uses of a sandbox work on an SSH host."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.remote_contract import RemoteContract
from tests.support.sshd import SshServer

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ssh-remote")]


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Generator[RemoteContract]:
    folder = tmp_path_factory.mktemp("remote")
    with SshServer() as server, pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "HF_HOME"):
            patch.setenv(name, str(folder / name.lower()))
        patch.setenv("SEER_CONTRACT_SECRET", "of-the-contract")
        made = RemoteContract(
            "ssh", folder=folder / "files", options=server.options(), cut=server.cut
        )
        patch.setenv("HF_ENDPOINT", made.hub_url)
        yield made
        made.close()
        assert list(Path(server.root, "state/seer/machines").iterdir()) == []


@pytest.mark.parametrize("name", RemoteContract.names())
def test_remote(contract: RemoteContract, name: str) -> None:
    contract.run(name)
