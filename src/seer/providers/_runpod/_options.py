"""What only RunPod understands."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from seer.errors import ConfigError

IMAGE = "runpod/pytorch:2.8.0-py3.11-cuda12.8.1-cudnn-devel-ubuntu22.04"
"""RunPod's own image with a Python of 3.11, CUDA and an SSH server."""


@dataclass(frozen=True, kw_only=True)
class RunPodOptions:
    """Options for `SandboxConfig.provider_options` with `provider="runpod"`."""

    image: str = IMAGE
    """An image with Python 3.11 or newer; an SSH server is installed where it lacks one."""
    cloud: Literal["ALL", "SECURE", "COMMUNITY"] = "SECURE"
    """`COMMUNITY` machines belong to strangers and are cheaper."""
    network_volume: str | None = None
    """The id of a network volume that keeps models and packages between pods; None for none."""
    data_center: str | None = None
    container_disk_gb: int = 50
    cpu_instance: str = "cpu3c-2-4"
    """What a pod without a GPU is."""

    def __post_init__(self) -> None:
        if self.cloud not in ("ALL", "SECURE", "COMMUNITY"):
            raise ConfigError(
                "RunPodOptions.cloud", self.cloud, "must be 'ALL', 'SECURE' or 'COMMUNITY'"
            )
        if self.container_disk_gb < 1:
            raise ConfigError(
                "RunPodOptions.container_disk_gb", self.container_disk_gb, "must be 1 or more"
            )
        if not self.image:
            raise ConfigError("RunPodOptions.image", self.image, "must name an image")


def read_options(given: object) -> RunPodOptions:
    """Options from what a configuration has: nothing, a mapping, or themselves.

    Raises:
        ConfigError: There is no such option, or it is of another provider.
    """
    if given is None:
        return RunPodOptions()
    if isinstance(given, RunPodOptions):
        return given
    known = [item.name for item in fields(RunPodOptions)]
    if not isinstance(given, Mapping):
        raise ConfigError("provider_options", given, "must be RunPodOptions or a mapping")
    values: dict[str, object] = {str(name): value for name, value in given.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for name in values:
        if name not in known:
            raise ConfigError("provider_options", name, f"RunPod has: {', '.join(known)}")
    return RunPodOptions(**values)  # pyright: ignore[reportArgumentType]
