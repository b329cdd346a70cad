"""Runs in its own environment: has a Python MCP client make calls, and reports the results.

Standard input says which client, the servers and the calls; standard output gets the names of the
tools and, for each call, the text that a model would be shown.
"""

# The packages are not in the environment that is checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportUntypedBaseClass=false

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

Servers = dict[str, dict[str, Any]]
Calls = list[tuple[str, str, dict[str, Any]]]
Told = tuple[list[str], list[str]]


def headers_of(entry: dict[str, Any]) -> dict[str, str]:
    """The headers that carry the token."""
    return {"Authorization": f"Bearer {entry['token']}"}


def shown(blocks: Any) -> str:
    """The text in blocks of content."""
    return "".join(getattr(block, "text", "") for block in blocks)


async def sdk(servers: Servers, calls: Calls) -> Told:
    """The official SDK."""
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    async with contextlib.AsyncExitStack() as stack:
        clients: dict[str, Any] = {}
        for name, entry in servers.items():
            if "url" in entry:
                web = httpx2.AsyncClient(headers=headers_of(entry), timeout=60)
                await stack.enter_async_context(web)
                way: Any = streamable_http_client(entry["url"], http_client=web)
            else:
                way = StdioServerParameters(command=entry["command"], args=entry["args"])
            clients[name] = await stack.enter_async_context(Client(way))
        tools = [tool.name for c in clients.values() for tool in (await c.list_tools()).tools]
        results = [await clients[server].call_tool(tool, given) for server, tool, given in calls]
        return tools, [shown(result.content) for result in results]


async def fastmcp(servers: Servers, calls: Calls) -> Told:
    """FastMCP's client."""
    from fastmcp import Client

    async with contextlib.AsyncExitStack() as stack:
        clients: dict[str, Any] = {}
        for name, entry in servers.items():
            plain = {"command": entry["command"], "args": entry["args"]} if "args" in entry else {}
            way = plain or {"url": entry["url"], "headers": headers_of(entry)}
            client = Client({"mcpServers": {name: way}})
            clients[name] = await stack.enter_async_context(client)
        tools = [tool.name for client in clients.values() for tool in await client.list_tools()]
        results = [
            await clients[server].call_tool(tool, given, raise_on_error=False)
            for server, tool, given in calls
        ]
        return tools, [shown(result.content) for result in results]


async def pydantic_ai(servers: Servers, calls: Calls) -> Told:
    """An agent of pydantic-ai, whose model is a script."""
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def transport(entry: dict[str, Any]) -> Any:
        if "url" in entry:
            return StreamableHttpTransport(entry["url"], headers=headers_of(entry))
        return StdioTransport(entry["command"], entry["args"])

    tools: list[str] = []
    told: list[str] = []
    left = list(calls)

    def model(messages: list[Any], info: Any) -> Any:
        tools[:] = [tool.name for tool in info.function_tools]
        if len(left) < len(calls):
            part = messages[-1].parts[0]
            answer = getattr(part, "model_response_str", None) or part.model_response
            told.append(answer())
        if not left:
            return ModelResponse(parts=[TextPart("done")])
        _, tool, given = left.pop(0)
        return ModelResponse(parts=[ToolCallPart(tool, given)])

    toolsets = [MCPToolset(transport(entry)) for entry in servers.values()]
    agent = Agent(FunctionModel(model), toolsets=toolsets, retries=5)
    async with agent:
        await agent.run("go")
    return tools, told


async def langchain(servers: Servers, calls: Calls) -> Told:
    """LangChain's tools."""
    from langchain_mcp_adapters.client import MultiServerMCPClient

    ways: dict[str, Any] = {}
    for name, entry in servers.items():
        if "url" in entry:
            ways[name] = {"transport": "streamable_http", "url": entry["url"]}
            ways[name]["headers"] = headers_of(entry)
        else:
            ways[name] = {"transport": "stdio", "command": entry["command"], "args": entry["args"]}
    tools = {tool.name: tool for tool in await MultiServerMCPClient(ways).get_tools()}
    told: list[str] = []
    for _, tool, given in calls:
        try:
            answer: Any = await tools[tool].ainvoke(given)
        except Exception as error:  # how it reports a tool's failure
            answer = str(error)
        told.append(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
    return list(tools), told


async def openai_agents(servers: Servers, calls: Calls) -> Told:
    """An agent of the OpenAI Agents SDK, whose model is a script."""
    from agents import Agent, ModelResponse, RunConfig, Runner, Usage
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
    from agents.models.interface import Model
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    listed: list[str] = []
    told: list[str] = []
    left = list(calls)

    class Script(Model):
        async def get_response(
            self,
            system_instructions: Any,
            input: Any,
            model_settings: Any,
            tools: Any,
            *rest: Any,
            **named: Any,
        ) -> Any:
            listed[:] = [tool.name for tool in tools]
            if len(left) < len(calls):
                told.append(json.dumps(input[-1]["output"], ensure_ascii=False))
            if not left:
                text = ResponseOutputText(text="done", type="output_text", annotations=[])
                out: Any = ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            else:
                _, tool, arguments = left.pop(0)
                out = ResponseFunctionToolCall(
                    call_id=f"c{len(left)}",
                    name=tool,
                    arguments=json.dumps(arguments),
                    type="function_call",
                )
            return ModelResponse(output=[out], usage=Usage(), response_id=None)

        def stream_response(self, *given: Any, **named: Any) -> Any:
            raise NotImplementedError

    async with contextlib.AsyncExitStack() as stack:
        there: list[Any] = []
        for entry in servers.values():
            if "url" in entry:
                way: Any = MCPServerStreamableHttp(
                    params={"url": entry["url"], "headers": headers_of(entry)},
                    client_session_timeout_seconds=60,
                )
            else:
                way = MCPServerStdio(
                    params={"command": entry["command"], "args": entry["args"]},
                    client_session_timeout_seconds=60,
                )
            there.append(await stack.enter_async_context(way))
        agent: Any = Agent(name="script", model=Script(), mcp_servers=there)
        await Runner.run(agent, "go", max_turns=20, run_config=RunConfig(tracing_disabled=True))
    return listed, told


def main() -> None:
    """Run the task from standard input."""
    wanted = json.load(sys.stdin)
    run = globals()[wanted["client"]]
    out = os.dup(1)
    os.dup2(2, 1)  # output that a package may print
    tools, told = asyncio.run(run(wanted["servers"], wanted["calls"]))
    with os.fdopen(out, "w") as file:
        json.dump({"tools": tools, "told": told}, file)


if __name__ == "__main__":
    main()
