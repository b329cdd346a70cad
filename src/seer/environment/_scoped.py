"""`ScopedSandbox`: a machine on which agents can call only the exposed functions."""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, assert_never, overload

from seer._ending import EndStep
from seer._sync import from_any_loop, on_loop, run_sync
from seer._wiring import OpenServer, open_interface_server
from seer.console import progress
from seer.environment._sandbox import Sandbox
from seer.environment.config._config import SandboxConfig
from seer.environment.serving._description import InterfaceDescription, InterfaceUsage, describe
from seer.environment.serving._request import (
    ServeRequest,
    Tracebacks,
    check_budget,
    check_number,
    make_request,
)
from seer.environment.serving._served import (
    GATE_FILES,
    Served,
    find_interfaces,
    release_interfaces,
)
from seer.errors import ConfigError, ProtocolError, SandboxStateError
from seer.isolation import Mount
from seer.providers import DEFAULT, Network
from seer.providers._bundle import bundle
from seer.rpc._bundles import client_bundle, server_bundle
from seer.rpc.interface._budget import Budget
from seer.rpc.library._docs import render_prompt, render_skill
from seer.rpc.library._stub import render
from seer.rpc.server._config import CALL_TIMEOUT
from seer.workspace import Library, Skill
from seer.workspace._names import check_module_name

ExposeAs = Literal["library", "mcp", "prompt", "skill"]
Restart = Literal["never", "on-failure"]
McpConfig = dict[str, dict[str, Any]]

logger = logging.getLogger(__name__)


class _ServeOptions(TypedDict, total=False):
    """The options of `ScopedSandbox.serve`, for its overloads."""

    budget: Budget | None
    restart: Restart
    tracebacks: Tracebacks
    replicas: int
    function_budgets: Mapping[str, Budget] | None
    caller_budget: Budget | None
    caller_memory: int | str | None
    call_timeout: float | None


class ScopedSandbox(Sandbox):
    """A machine that serves the functions marked with `@expose` in your interface files.

    Example:
        scoped = ScopedSandbox(SandboxConfig(models=[ModelConfig(name="google/gemma-2-9b")]))
        scoped.start()
        model_tools = scoped.serve("interface.py", expose_as="library", name="model_tools")
    """

    _kind: ClassVar[str] = "scoped"
    _default_network: ClassVar[Network] = "none"

    def __init__(self, config: SandboxConfig | None = None) -> None:
        """Describe the sandbox; nothing starts before `start`."""
        super().__init__(config)
        self._served: dict[str, Served] = {}
        self._died: list[Served] = []
        """Interfaces that died and were served again; sessions may still depend on them."""
        self._serving: dict[str, asyncio.Lock] = {}
        self._mcp_servers: list[OpenServer] = []

    def _extra_mounts(self) -> tuple[Mount, ...]:
        return (Mount(bundle(server_bundle()), GATE_FILES),)

    def _content_steps(self) -> Iterator[EndStep]:
        for served in (*self._died, *self._served.values()):
            for dependent in list(served.dependents):
                yield partial(dependent.owner_ends, served)
        for server in list(self._mcp_servers):
            yield partial(self._close_mcp_server, server)
        for served in list(self._served.values()):
            yield partial(self._stop_interface, served)

    async def _close_mcp_server(self, server: OpenServer) -> None:
        await server.close()
        self._mcp_servers.remove(server)

    async def _stop_interface(self, served: Served) -> None:
        await served.stop()
        del self._served[served.name]

    @from_any_loop
    async def adetach(self) -> str:
        """The async version of `detach`."""
        await release_interfaces(self.machine, list(self._served.values()))
        return await super().adetach()

    @classmethod
    @from_any_loop
    async def afrom_id(cls, sandbox_id: str, *, provider: str = DEFAULT) -> Self:
        """The async version of `from_id`."""
        sandbox = await super().afrom_id(sandbox_id, provider=provider)
        try:
            sandbox._served = await find_interfaces(sandbox.machine)
        except BaseException:
            machine, sandbox._started = sandbox.machine, None
            await asyncio.shield(machine.let_go())
            raise
        return sandbox

    @property
    def served(self) -> tuple[str, ...]:
        """The names of the served interfaces, including those that an earlier process served."""
        return tuple(self._served)

    @overload
    def serve(
        self,
        file_path: str | os.PathLike[str],
        expose_as: Literal["library"] = "library",
        name: str | None = None,
        **options: Unpack[_ServeOptions],
    ) -> Library: ...
    @overload
    def serve(
        self,
        file_path: str | os.PathLike[str],
        expose_as: Literal["mcp"],
        name: str | None = None,
        **options: Unpack[_ServeOptions],
    ) -> McpConfig: ...
    @overload
    def serve(
        self,
        file_path: str | os.PathLike[str],
        expose_as: Literal["prompt"],
        name: str | None = None,
        **options: Unpack[_ServeOptions],
    ) -> str: ...
    @overload
    def serve(
        self,
        file_path: str | os.PathLike[str],
        expose_as: Literal["skill"],
        name: str | None = None,
        **options: Unpack[_ServeOptions],
    ) -> Skill: ...
    def serve(
        self,
        file_path: str | os.PathLike[str],
        expose_as: ExposeAs = "library",
        name: str | None = None,
        *,
        budget: Budget | None = None,
        restart: Restart = "never",
        tracebacks: Tracebacks = "names",
        replicas: int = 1,
        function_budgets: Mapping[str, Budget] | None = None,
        caller_budget: Budget | None = None,
        caller_memory: int | str | None = None,
        call_timeout: float | None = CALL_TIMEOUT,
    ) -> Library | McpConfig | str | Skill:
        """Load an interface file in the sandbox and serve its exposed functions.

        A file that is already served under this name is not loaded again: another `expose_as` gives
        another view of the same interface. If its process has died, the file is loaded again, and a
        warning says how it died.

        Args:
            file_path: The interface file.
            expose_as: `library`: a `Library` for a workspace. `mcp`: the configuration of an MCP
                server. `prompt`: Markdown. `skill`: a `Skill`.
            name: The name that agents use; by default, the file's stem.
            budget: The limits for all callers together.
            restart: Whether to start the interface again when its process dies.
            tracebacks: What callers see of tracebacks: `"names"` shows function names and line
                numbers, True also shows files and source lines, and False shows nothing. The record
                has the whole traceback.
            replicas: How many copies of the interface to run. Each copy gets the least used GPU.
                Functions with `stateful=False` run in the least loaded copy; all other calls of one
                caller run in the same copy. With two or more copies, `scale` can change the number.
            function_budgets: The limits for single functions, for all callers together.
            caller_budget: The limits for each caller (a session, an MCP server, `connect()`).
            caller_memory: Bytes (or e.g. `"2GiB"`) of the interface's memory that each caller may
                hold with handles and running calls' arguments, and again with arrays of results.
                The default is 4 GiB, or an eighth of the sandbox's `memory` if that is less.
            call_timeout: Seconds that a call of a function without `@expose(timeout=)` may run. The
                call is then stopped; if the function does not stop, the process is killed. None for
                no limit. Callers' own deadlines never kill the process.

        Raises:
            ServeError: The file cannot be served; the message has the file, the line and the
                reason.
            ConfigError: An argument has an invalid value.
            SandboxStateError: The sandbox is not running.
        """
        request = make_request(
            Path(file_path),
            name,
            self._running,
            budget=budget,
            restart=restart,
            tracebacks=tracebacks,
            replicas=replicas,
            function_budgets=dict(function_budgets or {}),
            caller_budget=caller_budget,
            caller_memory=caller_memory,
            call_timeout=call_timeout,
        )
        return run_sync(self._serve(request, expose_as))

    async def aserve(
        self,
        file_path: str | os.PathLike[str],
        expose_as: ExposeAs = "library",
        name: str | None = None,
        *,
        budget: Budget | None = None,
        restart: Restart = "never",
        tracebacks: Tracebacks = "names",
        replicas: int = 1,
        function_budgets: Mapping[str, Budget] | None = None,
        caller_budget: Budget | None = None,
        caller_memory: int | str | None = None,
        call_timeout: float | None = CALL_TIMEOUT,
    ) -> Library | McpConfig | str | Skill:
        """The async version of `serve`."""
        request = make_request(
            Path(file_path),
            name,
            self._running,
            budget=budget,
            restart=restart,
            tracebacks=tracebacks,
            replicas=replicas,
            function_budgets=dict(function_budgets or {}),
            caller_budget=caller_budget,
            caller_memory=caller_memory,
            call_timeout=call_timeout,
        )
        return await on_loop(self._serve(request, expose_as))

    async def _serve(
        self, request: ServeRequest, expose_as: ExposeAs
    ) -> Library | McpConfig | str | Skill:
        if expose_as not in ("library", "mcp", "prompt", "skill"):
            raise ConfigError(
                "serve(expose_as=)", expose_as, "must be 'library', 'mcp', 'prompt' or 'skill'"
            )
        if expose_as == "library":
            check_module_name("serve(name=)", request.name)
        # A concurrent request for the same interface waits here, then finds it loaded.
        async with self._serving.setdefault(request.name, asyncio.Lock()):
            served = self._served.get(request.name)
            if served is not None and (ended := await served.how_it_ended()):
                logger.warning("%s; loading it again", ended)
                await self._stop_interface(served)
                self._died.append(served)
                served = None
            if served is None:
                served = self._served[request.name] = await self._load(request)
        if served.request != request:
            raise ConfigError(
                "serve(name=)",
                request.name,
                f"is already served from {str(served.request.file)!r} with other options; "
                "choose another name",
            )
        return await self._present(served, expose_as)

    async def _load(self, request: ServeRequest) -> Served:
        with progress(f"serve {request.name}") as display, display.phase("interface") as phase:
            return await Served.start(request, self.machine, on_line=phase.say)

    async def _present(
        self, served: Served, expose_as: ExposeAs
    ) -> Library | McpConfig | str | Skill:
        schema = served.schema
        if expose_as == "library":
            files = {path: text.encode() for path, text in render(schema).items()}
            for path, source in client_bundle().items():
                files[path] = source.read_bytes()
            return Library(name=schema.name, files=files, docs=render_prompt(schema), gate=served)
        if expose_as == "prompt":
            return render_prompt(schema)
        if expose_as == "skill":
            return Skill.from_markdown(render_skill(schema))
        if expose_as == "mcp":
            server = await open_interface_server(served)
            self._mcp_servers.append(server)
            return server.mcp_config
        assert_never(expose_as)

    def reload(self, name: str) -> None:
        """Load an interface file again after it was changed; objects marked with `keep` stay.

        Running calls finish with the old code. Libraries made earlier keep their list of functions;
        serve the file again for a new library.

        Raises:
            ServeError: The changed file cannot be served; the old version is still served.
            SandboxStateError: No interface of this name is served.
        """
        run_sync(self.areload(name))

    @from_any_loop
    async def areload(self, name: str) -> None:
        """The async version of `reload`."""
        await self._find(name).reload()

    def scale(self, name: str, replicas: int) -> None:
        """Change the number of copies of an interface. No call is lost while it changes.

        Returns once this many copies run. A copy finishes its running calls before it ends. Its
        callers move to another copy and lose the module state that functions kept for them. A copy
        whose callers hold handles stays for ten seconds; after that, the next call of such a caller
        raises `InterfaceRestartedError`.

        Args:
            name: The interface's name. It must have been served with two copies or more.
            replicas: The number of copies to run; 1 or more.

        Raises:
            ConfigError: `replicas` is not a valid number.
            ServeError: A new copy could not load the interface; the running copies continue.
            SandboxStateError: No interface of this name is served, or it was served with one
                process.
        """
        run_sync(self.ascale(name, replicas))

    @from_any_loop
    async def ascale(self, name: str, replicas: int) -> None:
        """The async version of `scale`."""
        check_number("scale(replicas=)", replicas)
        served = self._find(name)
        if served.request.replicas == 1:
            raise SandboxStateError(
                f"{name!r} is served by one process, which cannot be scaled; serve it"
                " with replicas=2 or more, which can be scaled to any number later"
            )
        await served.scale(replicas)

    def set_budget(
        self,
        name: str,
        budget: Budget,
        *,
        function: str | None = None,
        caller: str | None = None,
    ) -> None:
        """Replace a budget of a served interface. Earlier usage still counts.

        The new budget holds until it is replaced, even after a reload or a restart.

        Args:
            name: The interface's name.
            budget: The new limits; `Budget()` for none.
            function: The function whose budget to replace. The new `calls` replaces `max_calls`.
            caller: The caller whose budget to replace, by its name in `usage`. Without `function`
                and `caller`, the interface's budget is replaced.

        Raises:
            ConfigError: There is no such function or caller, or both are given.
            SandboxStateError: No interface of this name is served.
        """
        run_sync(self.aset_budget(name, budget, function=function, caller=caller))

    @from_any_loop
    async def aset_budget(
        self,
        name: str,
        budget: Budget,
        *,
        function: str | None = None,
        caller: str | None = None,
    ) -> None:
        """The async version of `set_budget`."""
        served = self._find(name)
        check_budget("set_budget(budget=)", budget)
        if function is not None and caller is not None:
            raise ConfigError("set_budget(caller=)", caller, "cannot be combined with function=")
        try:
            await served.control.set_budget(budget, function=function, caller=caller)
        except ProtocolError as error:
            what = "set_budget(caller=)" if function is None else "set_budget(function=)"
            raise ConfigError(what, caller or function, str(error)) from None

    def usage(self, name: str) -> InterfaceUsage:
        """The usage of an interface so far: in total, by function and by caller.

        Raises:
            InterfaceDiedError: Its processes were killed; the message says how.
            SandboxStateError: No interface of this name is served.
        """
        return InterfaceUsage(**run_sync(self._find(name).control.used()))

    @overload
    def present(self, name: str, expose_as: Literal["library"] = "library") -> Library: ...
    @overload
    def present(self, name: str, expose_as: Literal["mcp"]) -> McpConfig: ...
    @overload
    def present(self, name: str, expose_as: Literal["prompt"]) -> str: ...
    @overload
    def present(self, name: str, expose_as: Literal["skill"]) -> Skill: ...
    def present(
        self, name: str, expose_as: ExposeAs = "library"
    ) -> Library | McpConfig | str | Skill:
        """Another view of an interface that this or an earlier process already serves.

        Raises:
            SandboxStateError: No interface of this name is served.
        """
        return run_sync(self._present(self._find(name), expose_as))

    def describe(self, name: str) -> InterfaceDescription:
        """The functions, schemas and warnings of a served interface.

        Raises:
            SandboxStateError: No interface of this name is served.
        """
        served = self._find(name)
        copies = run_sync(served.copies()) if served.request.replicas > 1 else ()
        return describe(served.schema, served.warnings, copies)

    def _find(self, name: str) -> Served:
        served = self._served.get(name)
        if served is None:
            known = ", ".join(self._served) or "none"
            raise SandboxStateError(f"no interface {name!r} is served; served interfaces: {known}")
        return served
