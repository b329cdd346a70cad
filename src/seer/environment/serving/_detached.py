"""Interfaces of a detached sandbox, which outlive the process that served them.

A file in the machine lists them, beside the sockets of the gates. An agent cannot reach the files
of a scoped machine, so the list is as trustworthy as the interfaces themselves.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from seer.environment.models._provenance import ModelOrigin
from seer.environment.serving._served import Served, ServeRequest
from seer.errors import InterfaceDiedError, RemoteFileError
from seer.providers import Machine
from seer.rpc.interface._budget import Budget

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry:
    """One interface, as the file has it."""

    folder: str
    request: dict[str, Any]


async def release_interfaces(machine: Machine, served: Mapping[str, Served]) -> None:
    """Let interfaces outlive this process, and list them in the machine."""
    entries = [
        {"folder": item.folder, "request": _to_json(item.request)} for item in served.values()
    ]
    await machine.write_file(_list_file(machine), json.dumps(entries).encode())
    for item in served.values():
        await item.release()


async def find_interfaces(machine: Machine) -> dict[str, Served]:
    """The interfaces that an earlier controller left running in the machine.

    Leaves out those that have ended since, with a warning, because the sandbox is still usable.
    """
    from pydantic import TypeAdapter

    try:
        text = await machine.read_file(_list_file(machine))
    except FileNotFoundError:
        return {}
    found: dict[str, Served] = {}
    for entry in TypeAdapter(list[_Entry]).validate_json(text):
        request = _from_json(entry.request)
        try:
            found[request.name] = await Served.attach(request, machine, entry.folder)
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


def _from_json(data: Mapping[str, Any]) -> ServeRequest:
    # Another version of Seer may have written fields that this one does not know.
    names = {item.name for item in fields(ServeRequest)}
    values = {name: value for name, value in data.items() if name in names}
    values["file"] = Path(values["file"])
    for name in ("budget", "caller_budget"):
        values[name] = _budget(values.get(name))
    budgets: Mapping[str, Any] = values.get("function_budgets", {})
    values["function_budgets"] = {name: Budget.from_json(it) for name, it in budgets.items()}
    values["origins"] = tuple(ModelOrigin(**origin) for origin in values.get("origins", ()))
    return ServeRequest(**values)


def _limits(budget: Budget | None) -> dict[str, float] | None:
    return None if budget is None else budget.to_json()


def _budget(limits: dict[str, float] | None) -> Budget | None:
    return None if limits is None else Budget.from_json(limits)
