"""Choose a jail backend. If none works, refuse with the reasons."""

import logging
import os
from collections.abc import Mapping
from typing import Literal

from seer.errors import IsolationUnavailableError
from seer.isolation._policy import BackendName
from seer.isolation.backends._base import Backend, Need
from seer.isolation.backends._bubblewrap import Bubblewrap
from seer.isolation.backends._container import Container, is_rented
from seer.isolation.backends._landlock import Landlock
from seer.isolation.backends._none import NoJail

logger = logging.getLogger(__name__)

_BACKENDS: Mapping[BackendName, Backend] = {
    "bubblewrap": Bubblewrap(),
    "container": Container(),
    "landlock": Landlock(),
    "none": NoJail(),
}
_AUTOMATIC: tuple[BackendName, ...] = ("bubblewrap", "landlock")


def choose(
    name: BackendName | Literal["auto"] = "auto", *, needs: frozenset[Need] = frozenset()
) -> Backend:
    """The backend to jail with.

    Args:
        name: A backend by name, or `auto` for the strongest that works here.
        needs: What the backend must provide. A backend that cannot is refused, even if it was
            named.

    Raises:
        IsolationUnavailableError: No backend can be used; the message has the reasons and fixes.
            Also raised if a backend could not be tried, for example for lack of processes. A
            hostile jail of the same user could cause that, so no weaker backend takes its place.
    """
    automatic: tuple[BackendName, ...] = _AUTOMATIC
    if is_rented():
        automatic = ("bubblewrap", "container")
    candidates = automatic if name == "auto" else (name,)
    reasons: list[str] = []
    for candidate in candidates:
        backend = _BACKENDS.get(candidate)
        if backend is None:
            known = ", ".join(["auto", *_AUTOMATIC, "none"])
            raise IsolationUnavailableError(f"isolation={name!r} is unknown; choose one of {known}")
        reason = _objection(backend, needs)
        if reason is None:
            if candidate == "none":
                logger.warning(
                    "isolation='none': NO JAIL. An agent's code runs as this user (%d) and can "
                    "read, change and reach everything this user can",
                    os.geteuid(),
                )
            return backend
        reasons.append(f"{candidate}: {reason}")
    listing = "\n".join(f"  - {reason}" for reason in reasons)
    raise IsolationUnavailableError(
        f"no jail can be set up here, so nothing was started:\n{listing}\n"
        f"To use no jail, set isolation='none'. The agent's code then runs as you, unconfined."
    )


def backends() -> dict[BackendName, str | None]:
    """For each backend, the reason why it cannot be used here; None if it works.

    `container` is left out: it is only for machines that hold a single sandbox.
    """
    names: tuple[BackendName, ...] = (*_AUTOMATIC, "none")
    found: dict[BackendName, str | None] = {}
    for name in names:
        try:
            found[name] = _BACKENDS[name].unavailable()
        except IsolationUnavailableError as error:
            found[name] = str(error)
    return found


def _objection(backend: Backend, needs: frozenset[Need]) -> str | None:
    for need in sorted(needs):
        reason = backend.refuses(need)
        if reason is not None:
            return reason
    return backend.unavailable()
