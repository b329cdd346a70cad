"""`seer.environment`, with the original's spellings of sandboxes, configurations and handles."""

import seer.environment
from seer.environment import *  # noqa: F403
from src.environment.config import ModelConfig, RepoConfig, SandboxConfig
from src.environment.handles import ModelHandle, RepoHandle
from src.environment.sandbox import Sandbox
from src.environment.scoped_sandbox import ScopedSandbox

__all__ = seer.environment.__all__  # pyright: ignore[reportUnsupportedDunderAll]
_ = ModelConfig, ModelHandle, RepoConfig, RepoHandle, Sandbox, SandboxConfig, ScopedSandbox
