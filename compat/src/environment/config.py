"""Configurations as the original spells them."""

from collections.abc import Sequence
from typing import Any

import seer.environment
from seer.environment import ExecutionMode
from src._old import without_meaning


class SandboxConfig(seer.environment.SandboxConfig):
    """A `seer.environment.SandboxConfig` that also takes the original's arguments."""

    rpc_timeout: float | None

    def __init__(
        self,
        gpu: str | None = "A100",
        execution_mode: ExecutionMode | None = ExecutionMode.NOTEBOOK,
        *args: Any,
        python_packages: Sequence[str] = (),
        notebook_packages: Sequence[str] = (),
        rpc_timeout: float | None = None,
        wait_timeout: float | None = None,
        docker_in_docker: bool = False,
        debug: bool = False,
        encrypted_ports: Sequence[int] = (),
        jupyter_port: int | None = None,
        rpc_port: int | None = None,
        debug_port: int | None = None,
        **options: Any,
    ) -> None:
        without_meaning(
            "SandboxConfig",
            {
                "docker_in_docker": docker_in_docker,
                "debug": debug,
                "encrypted_ports": encrypted_ports,
                "jupyter_port": jupyter_port,
                "rpc_port": rpc_port,
                "debug_port": debug_port,
            },
        )
        if len(args) > 2:
            python_packages, args = args[2], args[:2]
        if wait_timeout is not None:
            options.setdefault("start_timeout", wait_timeout)
        names = ("models", "repos")
        super().__init__(
            gpu,
            # In the original, None meant a machine without Jupyter, as for a shell.
            ExecutionMode.CLI if execution_mode is None else execution_mode,
            python_packages=[*python_packages, *notebook_packages],
            **dict(zip(names, args, strict=False)),
            **options,
        )
        object.__setattr__(self, "rpc_timeout", rpc_timeout)


class ModelConfig(seer.environment.ModelConfig):
    """A `seer.environment.ModelConfig` that takes `load_as_peft` for `is_peft`."""

    def __init__(self, *args: Any, load_as_peft: bool = False, **options: Any) -> None:
        super().__init__(*args, **({"is_peft": True} if load_as_peft else {}), **options)


class RepoConfig(seer.environment.RepoConfig):
    """A `seer.environment.RepoConfig` whose `install` may be True or False."""

    def __init__(
        self,
        *args: Any,
        install: str | bool | None = None,
        dockerfile: str | None = None,
        **options: Any,
    ) -> None:
        without_meaning("RepoConfig", {"dockerfile": dockerfile})
        command = "pip install -e ." if install is True else install or None
        super().__init__(*args, install=command, **options)
