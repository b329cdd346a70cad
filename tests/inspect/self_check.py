"""Inspect's own checks of a sandbox, on Seer's.

Only root can give a sandbox several users. An ordinary user's sandbox passes all checks but one.
"""

import os
from collections.abc import AsyncGenerator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]

from seer.inspect import SeerConfig, SeerSandboxEnvironment

pytestmark = [pytest.mark.full, pytest.mark.campaign, pytest.mark.anyio]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def machine() -> AsyncGenerator[SandboxEnvironment]:
    config = SeerConfig(users=os.geteuid() == 0)
    found = await SeerSandboxEnvironment.sample_init("task", config, {})
    yield found["default"]
    await SeerSandboxEnvironment.sample_cleanup("task", config, found, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, machine: SandboxEnvironment) -> SandboxEnvironment:
    if request.function.__name__ == "test_exec_as_user" and os.geteuid() != 0:
        pytest.skip("needs root")
    return machine
