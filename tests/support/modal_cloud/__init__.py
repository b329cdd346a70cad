"""Modal's cloud on loopback: the real SDK's protocol, with containers of this host as sandboxes.

Images are layers built by running their commands, volumes are folders, tunnels are TLS ports of
this host. What it cannot do is answered as gRPC answers unknown calls. Faults are set in
`ModalCloud.faults` while it runs.
"""

from tests.support.modal_cloud._certificate import certificate
from tests.support.modal_cloud._cloud import ModalCloud
from tests.support.modal_cloud._state import GPUS, Faults

__all__ = ["GPUS", "Faults", "ModalCloud", "certificate"]
