"""RunPod's cloud on loopback: its GraphQL API, with containers of this host as pods.

A pod runs its start command, gets a key of its own that can end it, is started again when its
container exits, and has its port 22 mapped to one of this host. Faults are set in
`RunPodCloud.faults` while it runs.
"""

from tests.support.runpod_cloud._cloud import RunPodCloud
from tests.support.runpod_cloud._pods import GPUS, Faults, GpuType

__all__ = ["GPUS", "Faults", "GpuType", "RunPodCloud"]
