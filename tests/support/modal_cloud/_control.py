"""Modal's control plane: apps, secrets, volumes, images and sandboxes (both generations)."""

import asyncio
import hmac
import time
from collections.abc import Iterable
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase

from tests.support.modal_cloud._images import Image, Images
from tests.support.modal_cloud._sandboxes import Sandbox, Sandboxes
from tests.support.modal_cloud._service import AnyStream, Service, receive
from tests.support.modal_cloud._state import Account, Faults
from tests.support.modal_cloud._tokens import Tokens

BUILDER_VERSION = "2025.06"
_CREATE_IF_MISSING = api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
_SUCCESS = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
_UNSPECIFIED = api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED


class ControlPlane(Service):
    """The calls that Modal's SDK makes on the way to a sandbox and around it."""

    generated = ModalClientBase

    def __init__(
        self,
        account: Account,
        images: Images,
        sandboxes: Sandboxes,
        *,
        tokens: Tokens,
        faults: Faults,
    ) -> None:
        self._account = account
        self._images = images
        self._sandboxes = sandboxes
        self._tokens = tokens
        self._faults = faults
        self.calls: list[str] = []
        """The names of all calls so far, in order."""

    async def admit(self, stream: AnyStream) -> None:
        """Check the token, as Modal does on every call."""
        if self._faults.outage:
            raise GRPCError(Status.UNAVAILABLE, "Modal is unreachable (injected)")
        metadata = dict(stream.metadata or {})
        given = (metadata.get("x-modal-token-id", ""), metadata.get("x-modal-token-secret", ""))
        wanted = (self._account.token_id, self._account.token_secret)
        right = all(hmac.compare_digest(str(g), w) for g, w in zip(given, wanted, strict=True))
        if not right or self._faults.token_revoked:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")

    # --- the account --------------------------------------------------------------------------

    async def ClientHello(self, stream: AnyStream) -> None:
        await receive(stream)
        await stream.send_message(
            api_pb2.ClientHelloResponse(image_builder_version=BUILDER_VERSION)
        )

    async def AuthTokenGet(self, stream: AnyStream) -> None:
        await receive(stream)
        await stream.send_message(api_pb2.AuthTokenGetResponse(token=self._tokens.issue("auth")))

    async def EnvironmentGetOrCreate(self, stream: AnyStream) -> None:
        request = await receive(stream)
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        await stream.send_message(
            api_pb2.EnvironmentGetOrCreateResponse(
                environment_id="en-main",
                metadata=api_pb2.EnvironmentMetadata(
                    name=request.deployment_name or "main", settings=settings
                ),
            )
        )

    async def AppGetOrCreate(self, stream: AnyStream) -> None:
        request = await receive(stream)
        create = request.object_creation_type == _CREATE_IF_MISSING
        app_id = self._account.apps.get_or_create(request.app_name, create=create)
        await stream.send_message(api_pb2.AppGetOrCreateResponse(app_id=app_id))

    async def SecretGetOrCreate(self, stream: AnyStream) -> None:
        request = await receive(stream)
        create = request.object_creation_type != _UNSPECIFIED
        secret_id = self._account.named_secrets.get_or_create(
            request.deployment_name, create=create
        )
        self._account.secret_values.setdefault(secret_id, dict(request.env_dict))
        await stream.send_message(api_pb2.SecretGetOrCreateResponse(secret_id=secret_id))

    async def VolumeGetOrCreate(self, stream: AnyStream) -> None:
        request = await receive(stream)
        create = request.object_creation_type != _UNSPECIFIED
        volume_id = self._account.volumes.get_or_create(request.deployment_name, create=create)
        version = api_pb2.VOLUME_FS_VERSION_V1
        await stream.send_message(
            api_pb2.VolumeGetOrCreateResponse(
                volume_id=volume_id,
                version=version,
                metadata=api_pb2.VolumeMetadata(version=version, name=request.deployment_name),
            )
        )

    # --- images -------------------------------------------------------------------------------

    async def ImageGetOrCreate(self, stream: AnyStream) -> None:
        request = await receive(stream)
        image = self._images.get_or_create(request.image, force=request.force_build)
        await stream.send_message(
            api_pb2.ImageGetOrCreateResponse(
                image_id=image.id, result=image.result, metadata=_metadata(image)
            )
        )

    async def ImageFromId(self, stream: AnyStream) -> None:
        image = self._images.get((await receive(stream)).image_id)
        await stream.send_message(
            api_pb2.ImageFromIdResponse(image_id=image.id, metadata=_metadata(image))
        )

    async def ImageJoinStreaming(self, stream: AnyStream) -> None:
        request = await receive(stream)
        image = self._images.get(request.image_id)
        position = int(request.last_entry_id or 0)
        deadline = time.monotonic() + (request.timeout or 55)
        while True:
            image.news.clear()
            fresh = image.log[position:]
            position += len(fresh)
            done = image.result is not None
            if fresh or done:
                await stream.send_message(
                    api_pb2.ImageJoinStreamingResponse(
                        task_logs=_log_items(image, position - len(fresh)),
                        entry_id=str(position),
                        result=image.result,
                        metadata=_metadata(image),
                        eof=done,
                    )
                )
            left = deadline - time.monotonic()
            if done or left <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await image.news.wait()
            except TimeoutError:
                return

    async def ImageBuildChainGet(self, stream: AnyStream) -> None:
        image = self._images.get((await receive(stream)).image_id)
        step = api_pb2.ImageBuildStep(
            image_id=image.id, builder_app_id="ap-builder", builder_task_id=f"ta-{image.id}"
        )
        step.started_at.FromSeconds(int(image.began))
        step.finished_at.FromSeconds(int(time.time()) + 1)
        await stream.send_message(api_pb2.ImageBuildChainGetResponse(build_steps=[step]))

    async def AppCountLogs(self, stream: AnyStream) -> None:
        request = await receive(stream)
        image = self._images.get(request.task_id.removeprefix("ta-"))
        bucket = api_pb2.AppCountLogsResponse.LogBucket(stdout_logs=len(image.log))
        bucket.bucket_start_at.CopyFrom(request.since)
        await stream.send_message(api_pb2.AppCountLogsResponse(buckets=[bucket]))

    async def AppFetchLogs(self, stream: AnyStream) -> None:
        request = await receive(stream)
        image = self._images.get(request.task_id.removeprefix("ta-"))
        batch = api_pb2.TaskLogsBatch(
            task_id=request.task_id, image_id=image.id, items=_log_items(image, 0)
        )
        await stream.send_message(api_pb2.AppFetchLogsResponse(batches=[batch]))

    # --- sandboxes ----------------------------------------------------------------------------

    async def SandboxCreate(self, stream: AnyStream) -> None:
        request = await receive(stream)
        env: dict[str, str] = {}
        for secret_id in request.definition.secret_ids:
            env |= self._account.secret(secret_id)
        sandbox = self._create(request, env, second=False)
        await stream.send_message(
            api_pb2.SandboxCreateResponse(sandbox_id=sandbox.id, metadata=_handle(sandbox))
        )

    async def SandboxCreateV2(self, stream: AnyStream) -> None:
        request = await receive(stream)
        if not self._faults.capacity:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "Insufficient capacity to create sandbox.")
        env = dict(request.ephemeral_secrets.contents) | self.environment(request.secret_sources)
        sandbox = self._create(request, env, second=True)
        while sandbox.container is None and sandbox.result is None:
            await asyncio.wait({asyncio.ensure_future(sandbox.ended.wait())}, timeout=0.01)
        await stream.send_message(
            api_pb2.SandboxCreateV2Response(
                sandbox_id=sandbox.id,
                task_id=sandbox.task_id,
                metadata=_handle(sandbox),
                tunnels=sandbox.tunnels.data(),
            )
        )

    def environment(self, sources: Iterable[Any]) -> dict[str, str]:
        """The variables of secrets, given by id or as they are."""
        env: dict[str, str] = {}
        for source in sources:
            if source.secret_id:
                env |= self._account.secret(source.secret_id)
            env |= dict(source.env.contents)
        return env

    def _create(self, request: Any, env: dict[str, str], *, second: bool) -> Sandbox:
        return self._sandboxes.create(
            request.app_id,
            request.definition,
            env=env,
            tags={tag.tag_name: tag.tag_value for tag in request.tags},
            second=second,
        )

    async def SandboxGetTaskId(self, stream: AnyStream) -> None:
        sandbox = self._sandboxes.get((await receive(stream)).sandbox_id)
        running = sandbox.container is not None
        await stream.send_message(
            api_pb2.SandboxGetTaskIdResponse(
                task_id=sandbox.task_id if running else None, task_result=sandbox.result
            )
        )

    async def SandboxWait(self, stream: AnyStream) -> None:
        request = await receive(stream)
        sandbox = self._sandboxes.get(request.sandbox_id)
        if request.timeout > 0 and not sandbox.ended.is_set():
            waiting = asyncio.create_task(sandbox.ended.wait())
            await asyncio.wait({waiting}, timeout=request.timeout)
            waiting.cancel()
        await stream.send_message(
            api_pb2.SandboxWaitResponse(result=sandbox.result, metadata=_handle(sandbox))
        )

    async def SandboxTerminate(self, stream: AnyStream) -> None:
        sandbox = self._sandboxes.get((await receive(stream)).sandbox_id)
        before = sandbox.result
        sandbox.end(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        await stream.send_message(api_pb2.SandboxTerminateResponse(existing_result=before))

    async def SandboxList(self, stream: AnyStream) -> None:
        request = await receive(stream)
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            sandbox
            for sandbox in self._sandboxes.running()
            if (not request.app_id or sandbox.app_id == request.app_id)
            and (not request.before_timestamp or sandbox.created_at < request.before_timestamp)
            and wanted.items() <= sandbox.tags.items()
        ]
        await stream.send_message(
            api_pb2.SandboxListResponse(sandboxes=[_info(sandbox) for sandbox in found])
        )

    async def SandboxTagsGet(self, stream: AnyStream) -> None:
        sandbox = self._sandboxes.get((await receive(stream)).sandbox_id)
        await stream.send_message(api_pb2.SandboxTagsGetResponse(tags=_tags(sandbox)))

    async def SandboxTagsSet(self, stream: AnyStream) -> None:
        from google.protobuf.empty_pb2 import Empty

        request = await receive(stream)
        sandbox = self._sandboxes.get(request.sandbox_id)
        sandbox.tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        await stream.send_message(Empty())

    async def SandboxGetTunnels(self, stream: AnyStream) -> None:
        sandbox = self._sandboxes.get((await receive(stream)).sandbox_id)
        await stream.send_message(
            api_pb2.SandboxGetTunnelsResponse(
                result=api_pb2.GenericResult(status=_SUCCESS), tunnels=sandbox.tunnels.data()
            )
        )

    async def TaskGetCommandRouterAccess(self, stream: AnyStream) -> None:
        task_id = (await receive(stream)).task_id
        self._sandboxes.of_task(task_id)
        await stream.send_message(
            api_pb2.TaskGetCommandRouterAccessResponse(
                jwt=self._tokens.issue(task_id), url=self._tokens.url
            )
        )

    async def SandboxGetCommandRouterAccess(self, stream: AnyStream) -> None:
        request = await receive(stream)
        sandbox = self._sandboxes.get(request.sandbox_id)
        self._sandboxes.of_task(sandbox.task_id)
        await stream.send_message(
            api_pb2.SandboxGetCommandRouterAccessResponse(
                jwt=self._tokens.issue(sandbox.task_id), url=self._tokens.url
            )
        )

    SandboxGetTaskIdV2 = SandboxGetTaskId
    SandboxWaitV2 = SandboxWait
    SandboxTerminateV2 = SandboxTerminate
    SandboxListV2 = SandboxList
    SandboxTagsGetV2 = SandboxTagsGet
    SandboxTagsSetV2 = SandboxTagsSet
    SandboxGetTunnelsV2 = SandboxGetTunnels


def _metadata(image: Image) -> api_pb2.ImageMetadata | None:
    if image.result is None or image.result.status != _SUCCESS:
        return None
    return api_pb2.ImageMetadata(workdir=image.workdir, image_builder_version=BUILDER_VERSION)


def _log_items(image: Image, start: int) -> list[api_pb2.TaskLogs]:
    return [
        api_pb2.TaskLogs(
            data=text,
            timestamp=image.began + 0.001 * number,
            file_descriptor=api_pb2.FILE_DESCRIPTOR_STDOUT,
        )
        for number, text in enumerate(image.log[start:], start)
    ]


def _handle(sandbox: Sandbox) -> api_pb2.SandboxHandleMetadata:
    return api_pb2.SandboxHandleMetadata(result=sandbox.result, app_id=sandbox.app_id)


def _tags(sandbox: Sandbox) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=k, tag_value=v) for k, v in sandbox.tags.items()]


def _info(sandbox: Sandbox) -> api_pb2.SandboxInfo:
    return api_pb2.SandboxInfo(
        id=sandbox.id,
        created_at=sandbox.created_at,
        app_id=sandbox.app_id,
        tags=_tags(sandbox),
        metadata=_handle(sandbox),
        task_info=api_pb2.TaskInfo(
            id=sandbox.task_id, started_at=sandbox.started_at, result=sandbox.result
        ),
    )
