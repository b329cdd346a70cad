"""Interfaces that outlive the process that served them: what a detached sandbox remembers of them.

The list is a file in the machine, beside the sockets of the gates. An agent never reaches a
scoped machine's files, so it can be believed as much as the interfaces themselves.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seer.environment.models._provenance import ModelOrigin
from seer.environment.serving._served import Served, ServeRequest
from seer.errors import InterfaceDiedError, RemoteFileError
from seer.providers import Machine
from seer.rpc.interface._budget import Budget

logger = logging.getLogger(__name__)


async def release_interfaces(machine: Machine, served: Mapping[str, Served]) -> None:
    """Let interfaces live on without this process, and note in the machine which they are."""
    entries = [
        {"folder": item.folder, "request": _to_json(item.request)} for item in served.values()
    ]
    await machine.write_file(_list_file(machine), json.dumps(entries).encode())
    for item in served.values():
        await item.release()


async def find_interfaces(machine: Machine) -> dict[str, Served]:
    """The interfaces that an earlier controller left running in the machine.

    One that has ended since is left out, with a warning: the sandbox is still of use.
    """
    try:
        entries: list[dict[str, Any]] = json.loads(await machine.read_file(_list_file(machine)))
    except FileNotFoundError:
        return {}
    found: dict[str, Served] = {}
    for entry in entries:
        request = _from_json(entry["request"])
        try:
            found[request.name] = await Served.attach(request, machine, entry["folder"])
        except (InterfaceDiedError, RemoteFileError) as error:
            logger.warning("%s is not served any more: %s", request.name, error)
    return found


def _list_file(machine: Machine) -> str:
    return f"{machine.layout.run}/interfaces.json"


def _to_json(request: ServeRequest) -> dict[str, Any]:
    return {
        **vars(request),
        "file": str(request.file),
        "models": dict(request.models),
        "hidden": dict(request.hidden),
        "budget": _limits(request.budget),
        "caller_budget": _limits(request.caller_budget),
        "function_budgets": {k: v.to_json() for k, v in request.function_budgets.items()},
        "origins": [asdict(origin) for origin in request.origins],
        "packages": dict(request.packages),
    }


def _from_json(data: dict[str, Any]) -> ServeRequest:
    budgets: dict[str, Any] = data.pop("function_budgets")
    return ServeRequest(
        file=Path(data.pop("file")),
        budget=_budget(data.pop("budget")),
        caller_budget=_budget(data.pop("caller_budget")),
        function_budgets={name: Budget.from_json(limits) for name, limits in budgets.items()},
        origins=tuple(ModelOrigin(**origin) for origin in data.pop("origins")),
        **data,
    )


def _limits(budget: Budget | None) -> dict[str, float] | None:
    return None if budget is None else budget.to_json()


def _budget(limits: dict[str, float] | None) -> Budget | None:
    return None if limits is None else Budget.from_json(limits)
