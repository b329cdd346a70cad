"""Sessions in a `Sandbox`: its models as variables, and functions served elsewhere."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from seer.environment import ModelConfig, Sandbox, SandboxConfig, ScopedSandbox
from seer.errors import ConfigError
from seer.execution import acreate_cli_session, acreate_notebook_session
from seer.testing import make_tiny_model
from seer.workspace import Library, Workspace

pytest.importorskip("torch")
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = '@expose\ndef add(a: int) -> int:\n    """Add one."""\n    return a + 1\n'


@pytest.fixture
async def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Sandbox]:
    known = make_tiny_model(tmp_path / "known")
    monkeypatch.setenv("SEER_MODEL_ALIASES", f"acme/known={known}")
    make_tiny_model(tmp_path / "organism-of-secrets", seed=1)
    config = SandboxConfig(
        gpu=None,
        provider="local",
        network="none",
        models=[
            ModelConfig(name="acme/known"),
            ModelConfig(name=str(tmp_path / "organism-of-secrets"), var_name="blind", hidden=True),
        ],
        python_packages=["ipykernel", "torch", "transformers"],
    )
    started = await Sandbox(config).astart()
    try:
        yield started
    finally:
        await started.aterminate()


@pytest.fixture
async def library(tmp_path: Path) -> AsyncGenerator[Library]:
    (tmp_path / "tools.py").write_text(INTERFACE)
    scoped = await ScopedSandbox(SandboxConfig(gpu=None, provider="local")).astart()
    try:
        served: Any = await scoped.aserve(tmp_path / "tools.py")
        yield served
    finally:
        await scoped.aterminate()


async def test_models_are_loaded_into_variables_and_hidden_ones_stay_hidden(
    sandbox: Sandbox, library: Library, tmp_path: Path
) -> None:
    workspace = Workspace(libraries=[library])
    async with await acreate_notebook_session(
        sandbox, workspace, notebook_dir=tmp_path / "out"
    ) as session:
        kinds = "type(model).__name__, type(blind).__name__, callable(tokenizer)"
        assert (
            await session.aexec(kinds)
        ).value == "('LlamaForCausalLM', 'LlamaForCausalLM', True)"
        told = "blind.config._name_or_path, blind_tokenizer.name_or_path"
        assert (await session.aexec(told)).value == "('/models/model_0', '/models/model_0')"
        # A model that is not hidden has its hub id, and programs can load it by this id.
        by_id = "__import__('transformers').AutoConfig.from_pretrained('acme/known')._name_or_path"
        assert (
            await session.aexec(f"model.config._name_or_path, {by_id}")
        ).value == "('acme/known', 'acme/known')"
        text = session.model_info_text
        assert "`model` and `tokenizer`" in text
        assert "`blind` and `blind_tokenizer`: a model whose name is withheld" in text
        assert "secrets" not in text
        assert (await session.aexec("import tools; tools.add(41)")).value == "42"
    assert sandbox.exec("echo alive") == "alive\n"
    sandbox.exec("touch here /root/there /data/everywhere && pip --version")


async def test_a_shell_in_a_sandbox_reaches_served_functions(
    sandbox: Sandbox, library: Library
) -> None:
    async with await acreate_cli_session(sandbox, Workspace(libraries=[library])) as session:
        command = "python3 -c 'import tools; print([tools.add(n) for n in range(3)])'"
        assert (await session.aexec(command)).stdout == "[1, 2, 3]\n"
        assert str(session.workspace_dir) == sandbox.machine.layout.workdir


async def test_notebook_and_shell_in_the_local_jail_reach_served_functions(
    library: Library, tmp_path: Path
) -> None:
    workspace = Workspace(libraries=[library])
    async with await acreate_notebook_session(
        None, workspace, notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "one"
    ) as notebook:
        assert (await notebook.aexec("import tools; tools.add(41)")).value == "42"
    async with await acreate_cli_session(None, workspace, workspace_dir=tmp_path / "two") as shell:
        command = "python3 -c 'import tools; print(tools.add(41))'"
        assert (await shell.aexec(command)).stdout == "42\n"


async def test_options_of_a_local_jail_do_not_fit_a_sandbox(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="belong to a jail on this machine"):
        await acreate_cli_session(sandbox, workspace_dir=tmp_path)
