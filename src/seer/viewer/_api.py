"""The HTTP API of the page: runs, one run and its parts. Everything is read through `seer.runs`.

Handlers run in threads, because they only read files; those that read a body are coroutines.
`_server` checks requests before they arrive here, and answers a `SeerError` with `failure`.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import seer
from seer.errors import ConfigError, PathEscapeError, RecordError, RunNotFoundError, SeerError
from seer.harness import control_run
from seer.isolation import read_bytes
from seer.runs import Run, RunFilter, RunIndex
from seer.viewer._claims import checked_claims
from seer.viewer._export import shared_page
from seer.viewer._fragments import (
    Fragments,
    difference,
    line_fragments,
    notebook_fragments,
)
from seer.viewer._json import answer
from seer.viewer._lines import LINE_KINDS, LineKind, described
from seer.viewer._live import follow
from seer.viewer._notebooks import read_notebook
from seer.viewer._redaction import Redaction
from seer.viewer._render import plain_line
from seer.viewer._sweeps import describe, run_folder, sweep_around

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_STATUS = {ConfigError: 400, RunNotFoundError: 404, RecordError: 422, PathEscapeError: 403}
MOST = 200
"""Runs on one page."""
MOST_LINES = 100
"""Lines whose fragments one request may ask for."""
LARGEST = 256 * 1024 * 1024

_CONTROLS = {"stop", "conclude", "message", "limits", "approve"}
"""The actions that the page can request from a running run."""


class Api:
    """The routes below `/api/`."""

    def __init__(self, root: Path, *, allow_control: bool, closing: Callable[[], bool]) -> None:
        self._root = root
        self._allow_control = allow_control
        self._closing = closing
        self._index = RunIndex(root)
        self._sweep = sweep_around(root)

    def routes(self) -> list[Route]:
        """All routes."""
        run = "/api/runs/{run}"
        return [
            Route("/api/about", self.about, methods=["GET"]),
            Route("/api/runs", self.runs, methods=["GET"]),
            Route("/api/sweep", self.sweep, methods=["GET"]),
            Route(run, self.run, methods=["GET"]),
            Route(run + "/stream", self.stream, methods=["GET"]),
            Route(run + "/line", self.line, methods=["GET"]),
            Route(run + "/fragments", self.fragments, methods=["GET"]),
            Route(run + "/blob/{digest}", self.blob, methods=["GET"]),
            Route(run + "/artifact/{name:path}", self.artifact, methods=["GET"]),
            Route(run + "/notebook", self.notebook, methods=["GET"]),
            Route(run + "/verify", self.verify, methods=["GET"]),
            Route(run + "/claims", self.claims, methods=["GET"]),
            Route("/api/difference", self.difference, methods=["POST"]),
            Route(run + "/share", self.share, methods=["POST"]),
            Route(run + "/control", self.control, methods=["POST"]),
        ]

    def about(self, request: Request) -> Response:
        """A description of this viewer."""
        return answer(
            {
                "version": seer.__version__,
                "allow_control": self._allow_control,
                "folder": (self._sweep or self._root).name,
                "sweep": self._sweep is not None,
            }
        )

    def runs(self, request: Request) -> Response:
        """One page of the listing."""
        query = request.query_params
        where = RunFilter(
            status=cast("Any", query.get("status") or None),
            provider=query.get("provider") or None,
            model=query.get("model") or None,
            search=query.get("search") or None,
        )
        page = self._index.page(
            where,
            order=cast("Any", query.get("order", "created")),
            descending=query.get("descending", "1") != "0",
            limit=min(_number(query, "limit", 50), MOST),
            offset=_number(query, "offset", 0),
        )
        return answer(
            {
                "runs": [_summary(dataclasses.asdict(row)) for row in page.runs],
                "total": page.total,
                "choices": page.choices,
            }
        )

    def sweep(self, request: Request) -> Response:
        """The sweep that the runs belong to."""
        if self._sweep is None:
            raise RunNotFoundError("these runs do not belong to a sweep")
        return answer(describe(self._sweep))

    def run(self, request: Request) -> Response:
        """One run: what `run.json` says, and which files were kept."""
        run = self._open(request)
        return answer(
            {
                "run": described(run),
                "artifacts": [str(path) for path in run.artifacts()],
            }
        )

    def stream(self, request: Request) -> Response:
        """Events and calls from the given offsets on, until the run ends."""
        run = self._open(request)
        offsets: dict[LineKind, int] = {
            kind: _number(request.query_params, kind, 0) for kind in LINE_KINDS
        }
        return StreamingResponse(
            follow(run, offsets, closing=self._closing), media_type="application/x-ndjson"
        )

    def line(self, request: Request) -> Response:
        """One whole line, by the offset where it begins."""
        run = self._open(request)
        kind: LineKind = "calls" if request.query_params.get("kind") == "calls" else "events"
        for _, body in run.lines(kind, after=_number(request.query_params, "at", 0)):
            return answer(body)
        raise RunNotFoundError("there is no line at this offset")

    def fragments(self, request: Request) -> Response:
        """The fragments of some lines, by kind and by the offsets where the lines begin."""
        run = self._open(request)
        found: dict[str, dict[str, Fragments]] = {}
        for kind in LINE_KINDS:
            offsets = [one for one in request.query_params.get(kind, "").split(",") if one]
            if len(offsets) > MOST_LINES:
                raise ConfigError(kind, len(offsets), f"at most {MOST_LINES} lines at a time")
            found[kind] = {at: _fragments_at(run, kind, at) for at in offsets}
        return answer(found)

    async def difference(self, request: Request) -> Response:
        """Two texts as fragments that mark their differences."""
        asked = _object(await request.body())
        left, right = str(asked.get("left", "")), str(asked.get("right", ""))
        return answer(await anyio.to_thread.run_sync(difference, left, right))

    def blob(self, request: Request) -> Response:
        """The bytes of a large value."""
        return _bytes(self._open(request).blob(str(request.path_params["digest"])))

    def artifact(self, request: Request) -> Response:
        """A file that the run kept."""
        folder = self._open(request).folder / "artifacts"
        try:
            return _bytes(read_bytes(folder, str(request.path_params["name"]), limit=LARGEST))
        except OSError as error:
            if isinstance(error, SeerError):
                raise
            raise RunNotFoundError(f"there is no such artifact: {error.strerror}") from error

    def notebook(self, request: Request) -> Response:
        """The notebook, or null."""
        found = read_notebook(self._open(request))
        return answer(found and {**found, "fragments": notebook_fragments(found)})

    def verify(self, request: Request) -> Response:
        """Whether the record is unchanged."""
        try:
            self._open(request).verify()
        except RecordError as error:
            return answer({"ok": False, "message": str(error)})
        return answer({"ok": True, "message": "both chains and the texts in blobs are intact"})

    def claims(self, request: Request) -> Response:
        """The claims of the run's final report, each with its verdict."""
        return answer(checked_claims(self._open(request)))

    async def share(self, request: Request) -> Response:
        """The run as one redacted file; with `preview`, only the counts of removed values."""
        asked = _object(await request.body())
        preview = bool(asked.pop("preview", False))
        redaction = Redaction.from_json(asked)

        def make() -> Response:
            page = shared_page(self._open(request), redaction)
            if preview:
                return answer(page.report)
            return Response(page.html.encode("utf-8"), media_type="application/octet-stream")

        return await anyio.to_thread.run_sync(make)

    async def control(self, request: Request) -> Response:
        """Change a running run."""
        if not self._allow_control:
            message = "this viewer is read-only; start it with --allow-control to change runs"
            return answer({"error": message}, status=403)
        asked = _object(await request.body())
        run = await anyio.to_thread.run_sync(self._open, request)
        await anyio.to_thread.run_sync(_control, run, asked)
        return answer({"ok": True})

    def _open(self, request: Request) -> Run:
        """The run that an address names: a folder of the root, or of the sweep that contains it."""
        name = str(request.path_params["run"])
        folder = self._root / name
        if not _RUN_ID.fullmatch(name):
            raise RunNotFoundError(f"there is no run {name!r}")
        if (folder / "run.json").is_file():
            return Run(folder)
        running = None if self._sweep is None else run_folder(self._sweep, name)
        if running is None:
            raise RunNotFoundError(f"the run {name!r} no longer exists")
        return Run(running)


async def failure(request: Request, error: Exception) -> Response:
    """Answer a request with an error whose message is for users."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
    return answer({"error": str(error)}, status=status)


def _fragments_at(run: Run, kind: LineKind, at: str) -> Fragments:
    for _, body in run.lines(kind, after=_number({kind: at}, kind, 0)):
        return line_fragments(kind, body, run.blob)
    return {}


def _bytes(data: bytes) -> Response:
    # An attachment: the browser must not open it as a page.
    return Response(
        data,
        media_type="application/octet-stream",
        headers={"content-disposition": "attachment"},
    )


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > 15:
        raise ConfigError(name, text, "must be a whole number, 0 or more")
    return int(text)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError("body", body[:80], f"must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError("body", body[:80], "must be a JSON object")
    return cast("dict[str, Any]", found)


def _summary(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the listing, with only the beginning of long texts."""
    shown = {key: v[:300] if isinstance(v, str) else v for key, v in row.items()}
    return {**shown, "line": plain_line(row.get("result") or row.get("task") or "")}


def _control(run: Run, asked: Mapping[str, Any]) -> None:
    """Forward a request of the page to a running run.

    Raises:
        ConfigError: The action is unknown, or its values have the wrong form.
        RunControlError: The run has ended, or cannot be reached.
    """
    action = asked.get("action")
    if action not in _CONTROLS:
        raise ConfigError("action", action, f"must be one of {sorted(_CONTROLS)}")
    control_run(
        run.folder,
        action,
        text=asked.get("text"),
        limits=asked.get("limits"),
        call=asked.get("call"),
        approved=asked.get("approved", False),
    )
