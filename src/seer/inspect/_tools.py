"""Makes Inspect tools from the functions of a served interface."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any

from inspect_ai.model import Content, ContentImage, ContentText
from inspect_ai.tool import Tool, ToolDef, ToolError, ToolParam, ToolParams
from inspect_ai.util import sandbox

from seer._sync import run_sync
from seer.environment.serving._served import Served
from seer.errors import ConfigError
from seer.rpc.client import Gate, connect
from seer.tools import Tool as SeerTool
from seer.tools import ToolFailure
from seer.tools._functions import FunctionTools
from seer.tools._sets import save_for
from seer.tools._tool import Stop
from seer.tools._values import Save
from seer.workspace import Library


def tools(library: Library) -> list[Tool]:
    """Make a tool for each function of a served library, and one that fetches late results.

    Use them like other tools: `use_tools(seer.inspect.tools(library))`. Their calls go through the
    gate as a new caller. Arrays and long texts become files in the sample's sandbox.

    Args:
        library: The result of `ScopedSandbox.serve`.

    Raises:
        ConfigError: The library is local code, or comes from a replay.
    """
    served = library.gate
    if not isinstance(served, Served):
        raise ConfigError("tools", library.name, "is not served by a ScopedSandbox")
    schema = served.schema
    socket = run_sync(served.open_caller(f"{schema.name}-inspect"))
    connection = _Connection(connect(schema.name, socket.address))
    served.add_dependent(connection)
    functions = FunctionTools(schema, connection.gate, connection.save_for)
    return [_tool(tool) for tool in functions.tools()]


class _Connection:
    """The tools' connection to the gate. It closes when the interface ends."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def owner_ends(self, owner: object) -> None:
        """See `seer.workspace._gate.Dependent`."""
        self.gate.close()

    def save_for(self, session: str) -> Save:
        """The function that saves files for the agent."""
        return _save


class _InspectContext:
    """Ignores progress reports, because Inspect cannot show them."""

    session = ""
    wants_progress = False

    async def report(self, seconds: float, message: str) -> None:
        """Ignore the report."""

    def started(self, name: str, stop: Stop) -> None:
        """Do nothing: functions of an interface start no code of an agent."""


def _tool(tool: SeerTool) -> Tool:
    execute = _execute(tool)
    found: dict[str, dict[str, Any]] = dict(tool.input_schema.get("properties") or {})
    # Inspect needs a description for every parameter.
    properties = {
        name: ToolParam.model_validate({"description": name, **schema})
        for name, schema in found.items()
    }
    required: list[str] = list(tool.input_schema.get("required", []))
    return ToolDef(
        execute,
        name=tool.name,
        description=tool.description or tool.name,
        parameters=ToolParams(properties=properties, required=required),
    ).as_tool()


def _execute(tool: SeerTool) -> Callable[..., Awaitable[str | list[Content]]]:
    async def execute(**arguments: Any) -> str | list[Content]:
        try:
            result = await tool.handler(arguments, _InspectContext())
        except ToolFailure as error:
            raise ToolError(str(error)) from None
        if result.failed:
            raise ToolError(result.text)
        if not result.images:
            return result.text
        shown: list[Content] = [ContentText(text=result.text)]
        for image in result.images:
            data = base64.b64encode(image.data).decode()
            shown.append(ContentImage(image=f"data:{image.mime};base64,{data}"))
        return shown

    return execute


async def _save(name: str, content: bytes) -> str:
    try:
        place = sandbox()
    except ProcessLookupError:
        return await save_for("")(name, content)
    path = f"results/{name}"
    await place.write_file(path, content)
    return path
