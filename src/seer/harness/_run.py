"""`run_agent`: drives an agent and reports its events.

The work happens in one task on Seer's background loop, not on the consumer's. So a consumer that
blocks, stops, raises or is cancelled cannot leave the agent or its tool servers half ended. A run
always ends in the same way: the task is cancelled, the agent's process, the tool servers and the
code that tools run end, the record is closed, and then the iteration ends. A completed run does not
stop code that its agent left running, and background jobs and terminals outlive every run.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any

import anyio

from seer._checks import check_type, items_of
from seer._redact import Redactor
from seer._sync import background_loop, resources_named
from seer.console._output import is_watched
from seer.errors import ConfigError, RecordError, RunControlError, ScriptError
from seer.events import (
    ErrorKind,
    Event,
    FinishReason,
    RunFinished,
    RunStarted,
    TextDelta,
)
from seer.harness._agent import Agent, AgentRequest
from seer.harness._approval import ApprovalPolicy, Approve, find_policy, read_policies
from seer.harness._context import AgentContext, RunOver
from seer.harness._control import control_socket
from seer.harness._limits import Crossing, Limits, Meter, Price
from seer.harness._record import Recording
from seer.harness._request import (
    SessionLike,
    choose_agent,
    choose_session,
    choose_words,
    given_servers,
    merge_servers,
    note_use,
)
from seer.harness._servers import ServerSpec
from seer.harness._toolbox import ToolBox, open_toolbox
from seer.harness.agents._replay import RecordedRun, find_recorded
from seer.harness.terminal._event_text import show as show_event
from seer.runs import new_run_id

logger = logging.getLogger(__name__)

_AWAKE = 0.25
"""Seconds that the consumer's loop may sleep. A notebook's kernel cancels an interrupted cell
without waking the loop, so the cell would wait for the next event."""


class EventQueue:
    """Passes events from the loop on which a run works to the loop on which its consumer waits.

    The loops can be in different threads. The producer never blocks in `put`. With `drained`, it
    waits until the consumer asks for the next event. So a consumer that stops at a tool call still
    prevents that call. There is one producer and one consumer. The producer's loop creates it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._closed = False
        self._next_wanted = False
        self._idle = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._consumer: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, event: Event) -> None:
        """Add an event and wake the consumer."""
        with self._lock:
            self._events.append(event)
            self._next_wanted = False
        self._idle.clear()
        self._wake_consumer()

    def close(self) -> None:
        """Tell the consumer that no more events will come."""
        with self._lock:
            self._closed = True
        self._wake_consumer()

    async def drained(self) -> None:
        """Wait until the consumer has taken every event and asks for the next."""
        await self._idle.wait()

    async def get(self) -> Event | None:
        """The next event; None when there will be none."""
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._closed:
                    return None
                self._next_wanted = True
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._consumer = (loop, future)
            self._loop.call_soon_threadsafe(self._mark_idle)
            while not future.done():
                await asyncio.wait([future], timeout=_AWAKE)

    def _mark_idle(self) -> None:
        with self._lock:
            wanted = self._next_wanted
        if wanted:  # a `put` may have come in between
            self._idle.set()

    def _wake_consumer(self) -> None:
        with self._lock:
            waiting, self._consumer = self._consumer, None
        if waiting is None:
            return
        loop, future = waiting
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class AgentRun(AsyncIterator[Event]):
    """A run of an agent: an async iterator of events. Made by `run_agent`.

    Nothing starts before the first event is requested. Leaving a loop over the run ends the run. An
    interactive run continues in the next loop instead, and ends with `aclose()`.
    """

    def __init__(
        self,
        agent: Agent,
        request: AgentRequest,
        *,
        servers: Sequence[ServerSpec],
        session: SessionLike | None,
        recording: Recording,
        interactive: bool,
        policies: Mapping[str, ApprovalPolicy],
        shown: bool = False,
    ) -> None:
        self.run_id = request.run_id
        self.result: RunFinished | None = None
        """The last event, once there is one."""
        self.meter = Meter(request.limits)
        """What the run has used so far, and its limits."""
        self._agent = agent
        self._request = request
        self._servers = servers
        self._session = session
        self._recording = recording
        self._interactive = interactive
        self._policies = policies
        self._shown = shown
        self._queue: EventQueue | None = None
        self._context: AgentContext | None = None
        self._scope: anyio.CancelScope | None = None
        self._unwanted = False
        self._ended = False
        self._unrecorded: RecordError | None = None
        self._early: list[str | None] = []
        self._events = self._iterate()

    @property
    def folder(self) -> Path | None:
        """The folder of the record; None for a run that is not recorded."""
        return self._recording.folder

    def __repr__(self) -> str:
        state = "not started" if self._queue is None else "running"
        if self.result is not None:
            state = self.result.reason
        elif self._ended:
            state = "ended"
        return f"<AgentRun {self.run_id}: {self._agent.name}, {state}>"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        try:
            while True:
                yield await anext(self)
        except StopAsyncIteration:
            pass
        finally:
            # Python closes this generator when the consumer leaves its loop. The run object stays
            # alive, because its driver refers to it, so it must be ended here.
            if not self._interactive:
                background_loop().call_soon_threadsafe(self._end)

    async def __anext__(self) -> Event:
        return await self._events.__anext__()

    async def aclose(self) -> None:
        """End the run; what it started is gone when this returns."""
        await self._events.aclose()

    # --- while it runs; safe from any thread -------------------------------------------------

    def send(self, text: str | None) -> None:
        """Send the agent a message after its answer; None ends an interactive run.

        A message that the agent will not get is reported as `MessageNotDelivered`.

        Raises:
            RunControlError: The run has ended.
        """
        if text is not None and self.result is not None:
            raise RunControlError(f"run {self.run_id} has ended ({self.result.reason})")

        def act() -> None:
            if self._context is not None:
                self._context.send(text)
            elif self._ended:
                logger.warning("a message was not delivered: run %s has ended", self.run_id)
            else:
                self._early.append(text)

        self._from_any_thread(act)

    def interrupt(self) -> None:
        """Interrupt the agent; an interactive conversation continues."""
        self._with_context(lambda context: context.interrupt())

    def conclude(self) -> None:
        """Close the tools and let the agent have one last turn."""
        self._with_context(lambda context: context.reach(Crossing("stop", 0, 0)))

    def approve(self, call_id: str, approved: bool = True, *, reason: str = "") -> None:
        """Answer an `ApprovalAsked`; an answer without a question has no effect.

        Args:
            call_id: The id of the call.
            approved: Whether it may be made.
            reason: The reason for a refusal; the agent sees it.
        """
        self._with_context(
            lambda context: context.approvals.answer(call_id, approved=approved, reason=reason)
        )

    def set_limits(self, limits: Limits) -> None:
        """Change the limits."""
        self._with_context(lambda context: context.set_limits(limits))

    def _with_context(self, action: Callable[[AgentContext], object]) -> None:
        def act() -> None:
            if self._context is not None:
                action(self._context)

        self._from_any_thread(act)

    def _from_any_thread(self, act: Callable[[], None]) -> None:
        def safely() -> None:
            with suppress(RecordError), self._ended_by_lost_records():
                act()

        background_loop().call_soon_threadsafe(safely)

    # --- the consumer's side -------------------------------------------------------------------

    async def _iterate(self) -> AsyncGenerator[Event, None]:
        loop = background_loop()
        ready: Future[EventQueue] = Future()
        driver = asyncio.run_coroutine_threadsafe(self._drive(ready), loop)
        try:
            queue = await asyncio.wrap_future(ready)
            while (event := await queue.get()) is not None:
                if self._shown:
                    # Here and not on the background loop, because writing to a stopped terminal
                    # blocks.
                    show_event(event)
                yield event
            await asyncio.wrap_future(driver)
        finally:
            loop.call_soon_threadsafe(self._end)
            if not driver.done():
                # Without the shield, a cancelled anyio scope would also cancel this wait, and the
                # agent's end would be missed. `asyncio.wait` never cancels the driver.
                with anyio.CancelScope(shield=True):
                    (ended,), _ = await asyncio.wait([asyncio.wrap_future(driver)])
                    if not ended.cancelled():
                        ended.exception()  # retrieved: the consumer wants no more of the run

    def _end(self) -> None:
        self._unwanted = True
        if self._scope is not None:
            self._scope.cancel()

    # --- the background loop's side ------------------------------------------------------------

    @contextmanager
    def _ended_by_lost_records(self) -> Generator[None, None, None]:
        """End the run if an event that the agent did not cause cannot be recorded.

        The agent does not get that error, and would continue without a record.
        """
        try:
            yield
        except RecordError as error:
            self._unrecorded = error
            self._end()
            raise

    async def _drive(self, ready: "Future[EventQueue]") -> None:
        queue = self._queue = EventQueue()
        ready.set_result(queue)
        try:
            with anyio.CancelScope() as self._scope:
                if self._unwanted:
                    return
                await self._work()
            if self._unrecorded is not None:
                raise self._unrecorded
        finally:
            queue.close()

    async def _work(self) -> None:
        reason: FinishReason = "cancelled"
        message = "the run was cancelled"
        try:
            with resources_named():
                self._recording.open(
                    self._agent, self._request, session=self._session, servers=self._servers
                )
                await self._recording.follow()
                async with (
                    control_socket(self._recording.folder, self._controlled_safely),
                    open_toolbox(self._servers, self._recorded_tools()) as toolbox,
                ):
                    context = self._context = self._make_context(toolbox)
                    self.meter = context.meter
                    context.emit(self._started(context))
                    for text in self._early:  # sent before there was an agent
                        context.send(text)
                    await self._run_agent(context)
                    reason, message = _outcome(context)
        except Exception as error:
            reason, message = "error", str(error) or type(error).__name__
            if self._context is not None:
                # The program gets the error itself, so the log does not repeat it.
                self._context.fail(_kind(error), message, log=False)
            raise
        finally:
            if self._unrecorded is not None:
                reason, message = "error", str(self._unrecorded)
                if self._context is not None:
                    self._context.fail("record", message, log=False)
            await self._settle(reason, message)

    def _make_context(self, toolbox: ToolBox) -> AgentContext:
        return AgentContext(
            toolbox,
            limits=self._request.limits,
            price=self._request.price,
            report=self._report,
            consumer_ready=self._consumer_ready,
            interactive=self._interactive,
            policies=self._policies,
            tool_calls=self._recording.tool_calls,
            asks=self._agent.name != "human",  # the terminal belongs to that person
            deltas=self._request.deltas,
            redact=Redactor(self._agent.secrets(self._request)).redact,
        )

    async def _settle(self, reason: FinishReason, message: str) -> None:
        """Stop the agent's code, record its last calls, and report the end, even if a step fails.

        The code stops first, because the next run would record any calls that it makes later.
        """
        context = self._context
        try:
            running = ""
            if context is not None:
                running = await context.stop_code(left=reason != "completed")
            with resources_named():
                missing = await self._recording.settle(running)
            if missing:
                reason, message = "error", f"calls are missing from the record: {missing}"
            if context is not None:
                if missing:
                    context.fail("record", message)
                context.finish(reason, message)
        except Exception as error:
            reason, message = "error", str(error) or type(error).__name__
            if context is not None and self.result is None:
                context.finish(reason, message)
            raise
        finally:
            self._context = None
            self._ended = True
            self._recording.close(reason, message)

    def _recorded_tools(self) -> RecordedRun | None:
        """Answers the tools of a replayed machine; None if no machine is replayed."""
        replayed = {spec.name for spec in self._servers if spec.recorded}
        if not replayed:
            return None
        run = self._recording.replayed = find_recorded(self._agent, self._request)
        return RecordedRun(run, {spec.name for spec in self._servers} - replayed)

    def _controlled_safely(self, request: Mapping[str, Any]) -> None:
        with self._ended_by_lost_records():
            self._controlled(request)

    def _controlled(self, request: Mapping[str, Any]) -> None:
        """Execute a request of another process, on the background loop."""
        match request.get("action"), self._context:
            case "stop", _:
                self._end()
            case "conclude", AgentContext() as context:
                context.reach(Crossing("stop", 0, 0))
            case "message", AgentContext() as context:
                if refusal := context.message_refusal:
                    raise RunControlError(refusal)
                context.send(str(request.get("text")))
            case "limits", AgentContext() as context:
                limits = context.meter.limits.changed(request.get("limits") or {})
                context.set_limits(limits)
                self._recording.limits(limits.as_dict())
            case "approve", AgentContext() as context:
                call = str(request.get("call"))
                approved, reason = request.get("approved") is True, str(request.get("text") or "")
                if not context.approvals.answer(call, approved=approved, reason=reason):
                    raise ConfigError("call", call, "is not a call that waits for approval")
            case action, context:
                if self._ended:
                    raise RunControlError("the run has ended")
                reason = "unknown" if context is not None else "not possible before the agent runs"
                raise ConfigError("action", action, reason)

    async def _run_agent(self, context: AgentContext) -> None:
        with anyio.CancelScope() as scope:
            watch = asyncio.create_task(self._watch(context, scope.cancel))
            try:
                await self._agent.run(self._request, context)
            except RunOver:
                logger.debug("the agent has had its last turn")
            finally:
                watch.cancel()

    async def _watch(self, context: AgentContext, cut: Callable[[], None]) -> None:
        with suppress(RecordError), self._ended_by_lost_records():
            await context.watch(cut)

    async def _consumer_ready(self) -> None:
        if self._queue is not None:
            await self._queue.drained()

    def _started(self, context: AgentContext) -> RunStarted:
        request = self._request
        return RunStarted(
            run_id=request.run_id,
            provider=self._agent.name,
            model=self._agent.model_name(request),
            system_prompt=request.system_prompt,
            task=request.task,
            tools=context.tools,
            session=self._session.session_id if self._session is not None else None,
            limits=request.limits.as_dict(),
        )

    def _report(self, event: Event) -> None:
        if not isinstance(event, TextDelta):
            self._recording.event(event)
        if isinstance(event, RunFinished):
            self.result = event
        if self._queue is not None:
            self._queue.put(event)


def _kind(error: Exception) -> ErrorKind:
    if isinstance(error, RecordError):
        return "record"
    return "script" if isinstance(error, ScriptError) else "internal"


def _outcome(context: AgentContext) -> tuple[FinishReason, str]:
    if (failure := context.failure or context.unfinished) is not None:
        return "error", failure.message
    if context.limit is not None:
        return "limit", context.limit.message
    return "completed", "the agent is done"


def run_agent(
    prompt: str | None = None,
    mcp_config: Mapping[str, Any] | None = None,
    *,
    provider: str | Agent = "claude",
    model: str | None = None,
    user_message: str | None = None,
    session: SessionLike | None = None,
    tools: bool = True,
    task: str | None = None,
    mcp_servers: Sequence[Mapping[str, Any]] = (),
    prompts: Sequence[str] = (),
    limits: Limits | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    price: Price | None = None,
    builtin_tools: Sequence[str] = (),
    deltas: bool = False,
    record: bool | Path | str = True,
    name: str | None = None,
    history: Sequence[Event] = (),
    interactive: bool = False,
    show: bool | None = None,
    substitute: bool = True,
    approve: Approve | None = None,
) -> AgentRun:
    """Run an agent; iterate over the result to see what it does.

    Args:
        prompt: The system prompt, or the first message if there is no `task`.
        mcp_config: Tool servers by name, in the form that agents' configurations use. A value can
            also be an in-process server of the `mcp` package.
        provider: `claude`, `openai` (any compatible endpoint with `base_url`), `gemini`,
            `scripted:FILE`, `human`, `replay:RUN`, a plugin's name, or an `Agent`.
        model: The vendor's model; by default, the provider chooses it.
        user_message: The same as `task`.
        session: The session whose tools the agent gets. Without a session and without tool servers,
            it is the only open session, unless an earlier run has used it; the log says which.
        tools: False for an agent without any tools, such as a judge.
        task: The first message to the agent.
        mcp_servers: More tool servers, each as `serve(..., expose_as="mcp")` returns it.
        prompts: Texts to append to the system prompt, as `serve(..., expose_as="prompt")` returns
            them.
        limits: What the run may use.
        base_url: The vendor's endpoint, if it is not the default one.
        api_key: The vendor's key; by default from the environment.
        price: What the model costs, if the built-in price list does not have it.
        builtin_tools: The vendor's own tools to allow, by name, such as web search.
        deltas: Whether to also report `TextDelta` events.
        record: True for a record in the default folder, another folder for records, or False for
            no record.
        name: What the run is called in listings.
        history: Events of another run that this one continues.
        interactive: Whether to wait for `AgentRun.send` when the agent has answered.
        approve: Which tool calls are made: `"auto"` (all, the default), `"ask"` (a person decides,
            in this terminal or in the viewer), `"deny"`, a function that gets the `ToolCall` and
            returns one of these or a bool, or a mapping from patterns of tool names (`"py*"`,
            `"server/*"`) to such policies; the first pattern that matches applies. Denials reach
            the agent as errors.
        show: Whether to show tool calls and texts on standard error as they come; by default, if
            standard error is a terminal and `SEER_QUIET=1` is not set.
        substitute: Whether the variable `SEER_AGENT` may replace this agent; sweeps, replays and
            forks set it. False for an agent that is not under study, such as a judge.

    Raises:
        ConfigError: The arguments do not fit together.
        MissingExtraError: The vendor's SDK is not installed.
        SecretMissingError: The vendor's key is not set.
        ToolServerError: A tool server cannot be started. Iterating can raise it too.
        HostResourceError: This host has no descriptors or no space left. Only iterating raises it.
    """
    check_type("provider", provider, (str, Agent), "a provider's name or an Agent")
    check_type("limits", limits, Limits, "Limits, such as Limits(turns=3)", none=True)
    check_type("price", price, Price, "a Price, such as Price(input=3, output=15)", none=True)
    items_of("builtin_tools", builtin_tools, str, "names")
    check_type("mcp_config", mcp_config, Mapping, "a mapping from names to servers", none=True)
    texts = {"prompt": prompt, "task": task, "user_message": user_message, "model": model}
    for field, text in texts.items():
        check_type(field, text, str, "a text", none=True)
    chosen = choose_agent(provider, substitute=substitute)
    given = given_servers(mcp_config, mcp_servers)
    session = choose_session(session, given, tools=tools)
    servers = merge_servers(session, given)
    words = choose_words(
        prompt,
        task,
        user_message=user_message,
        prompts=prompts,
        session=session,
        interactive=interactive,
    )
    request = AgentRequest(
        run_id=new_run_id(),
        provider=chosen.asked,
        agent=chosen.name,
        model=model,
        system_prompt=words.system_prompt,
        task=words.task,
        base_url=base_url,
        api_key=api_key,
        builtin_tools=tuple(builtin_tools),
        limits=limits or Limits(),
        price=price,
        deltas=deltas,
        history=tuple(history),
        callers={} if session is None else dict(session.callers),
    )
    chosen.agent.check(request)
    policies = read_policies(approve)
    for tool in builtin_tools:
        if find_policy(policies, tool, None) != "auto":
            reason = "the vendor runs this tool itself, so nobody can approve its calls"
            raise ConfigError("approve", tool, f"{reason}; add approve={{{tool!r}: 'auto', ...}}")
    if session is not None:
        note_use(session)
    return AgentRun(
        chosen.agent,
        request,
        servers=servers,
        session=session,
        recording=Recording(record, name=name),
        interactive=interactive,
        policies=policies,
        shown=is_watched() and not chosen.agent.uses_terminal if show is None else show,
    )
