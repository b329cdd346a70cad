"""Options that only RunPod has."""

from dataclasses import dataclass
from typing import Literal

from seer.errors import ConfigError
from seer.providers._options import options_from

IMAGE = "runpod/pytorch:2.8.0-py3.11-cuda12.8.1-cudnn-devel-ubuntu22.04"
"""RunPod's own image with Python 3.11, CUDA and an SSH server."""


@dataclass(frozen=True, kw_only=True)
class RunPodOptions:
    """Options for `SandboxConfig.provider_options` with `provider="runpod"`."""

    image: str = IMAGE
    """An image with Python 3.11 or newer; an SSH server is installed if it lacks one."""
    cloud: Literal["ALL", "SECURE", "COMMUNITY"] = "SECURE"
    """`COMMUNITY` machines are cheaper, but belong to third parties."""
    network_volume: str | None = None
    """The id of a network volume that keeps models and packages between pods; None for none."""
    data_center: str | None = None
    container_disk_gb: int = 50
    cpu_instance: str = "cpu3c-2-4"
    """The instance type of a pod without a GPU."""

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
    """Read a configuration's options; see `options_from`."""
    return options_from(RunPodOptions, given, vendor="RunPod")
