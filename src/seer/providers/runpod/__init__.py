"""RunPod, through its GraphQL API and SSH.

_options.py    what only RunPod understands
_api.py        requests, and RunPod's errors as Seer's
_gpus.py       which of its GPUs a name stands for, and what they cost
_keys.py       the keys by which a pod and this user know each other
_pods.py       rent, find and list pods
start.sh       what a pod runs: an SSH server, then the rental monitor
"""

from seer.providers.runpod._provider import RunPodOptions, RunPodProvider

__all__ = ["RunPodOptions", "RunPodProvider"]
