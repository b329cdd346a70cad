"""Modal's command router: run commands in a sandbox and move their streams."""

from collections.abc import Callable, Iterable
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as sr_pb2
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from tests.support.modal_cloud._execs import Exec
from tests.support.modal_cloud._sandboxes import Sandboxes
from tests.support.modal_cloud._service import AnyStream, Service, receive
from tests.support.modal_cloud._state import Faults
from tests.support.modal_cloud._tokens import Tokens

_STDOUT = sr_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT


class CommandRouter(Service):
    """The calls that Modal's SDK makes to run commands."""

    generated = TaskCommandRouterBase

    def __init__(
        self,
        sandboxes: Sandboxes,
        environment: Callable[[Iterable[Any]], dict[str, str]],
        *,
        tokens: Tokens,
        faults: Faults,
    ) -> None:
        self._sandboxes = sandboxes
        self._environment = environment
        self._tokens = tokens
        self._faults = faults

    async def admit(self, stream: AnyStream) -> None:
        """Check the router's token."""
        if self._faults.outage:
            raise GRPCError(Status.UNAVAILABLE, "Modal is unreachable (injected)")
        metadata = dict(stream.metadata or {})
        token = str(metadata.get("authorization", "")).removeprefix("Bearer ")
        if self._tokens.subject(token) is None:
            raise GRPCError(Status.UNAUTHENTICATED, "invalid token")

    def _exec(self, request: Any) -> Exec:
        sandbox = self._sandboxes.of_task(request.task_id)
        if request.exec_id not in sandbox.execs:
            raise GRPCError(Status.NOT_FOUND, f"exec {request.exec_id} not found")
        return sandbox.execs[request.exec_id]

    async def TaskExecStart(self, stream: AnyStream) -> None:
        request = await receive(stream)
        sandbox = self._sandboxes.of_task(request.task_id)
        if sandbox.container is None or sandbox.container.ended.done():
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox is not running")
        # The exec's id is also its idempotency key.
        if request.exec_id not in sandbox.execs:
            env = {**sandbox.env, **self._environment(request.secret_sources)}
            running = await sandbox.container.run(
                list(request.command_args), env=env, cwd=request.workdir or "/"
            )
            sandbox.execs[request.exec_id] = Exec(
                running, " ".join(request.command_args), seconds=request.timeout_secs
            )
        await stream.send_message(sr_pb2.TaskExecStartResponse())

    async def TaskExecStdioRead(self, stream: AnyStream) -> None:
        request = await receive(stream)
        running = self._exec(request)
        output = running.stdout if request.file_descriptor == _STDOUT else running.stderr
        offset = request.offset
        while data := await output.read(offset):
            offset += len(data)
            await stream.send_message(sr_pb2.TaskExecStdioReadResponse(data=data))

    async def TaskExecStdinWrite(self, stream: AnyStream) -> None:
        request = await receive(stream)
        await self._exec(request).write(request.offset, request.data, eof=request.eof)
        await stream.send_message(sr_pb2.TaskExecStdinWriteResponse())

    async def TaskExecWait(self, stream: AnyStream) -> None:
        request = await receive(stream)
        running = self._exec(request)
        if self._faults.unanswered and self._faults.unanswered in running.command:
            await self._sandboxes.of_task(request.task_id).ended.wait()
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox has already shut down")
        code = await running.wait()
        await stream.send_message(
            sr_pb2.TaskExecWaitResponse(signal=-code)
            if code < 0
            else sr_pb2.TaskExecWaitResponse(code=code)
        )

    async def TaskExecPoll(self, stream: AnyStream) -> None:
        code = self._exec(await receive(stream)).exit_code
        answer = sr_pb2.TaskExecPollResponse()
        if code is not None:
            answer = (
                sr_pb2.TaskExecPollResponse(signal=-code)
                if code < 0
                else sr_pb2.TaskExecPollResponse(code=code)
            )
        await stream.send_message(answer)

    async def TaskSnapshotFilesystem(self, stream: AnyStream) -> None:
        sandbox = self._sandboxes.of_task((await receive(stream)).task_id)
        await stream.send_message(
            sr_pb2.TaskSnapshotFilesystemResponse(image_id=self._sandboxes.snapshot(sandbox))
        )
