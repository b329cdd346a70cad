"""RunPod, through its GraphQL API and SSH.

_options.py    options that only RunPod has
_api.py        requests, and RunPod's errors as Seer's
_keys.py       the SSH keys of this user and of each pod
_pods.py       rents, finds and lists pods, and chooses their GPUs
_provider.py   the provider, and a pod as a host
start.sh       what a pod runs: an SSH server, then the rental monitor
"""

from seer.providers.runpod._provider import RunPodOptions, RunPodProvider

__all__ = ["RunPodOptions", "RunPodProvider"]
