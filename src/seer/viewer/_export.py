"""One run as one file: the page, its styles and scripts, and the redacted record.

The file needs no server and no network. Its policy allows only its own script, by hash, so nothing
in the record can become code; the record itself is data that the browser never runs.
"""

import base64
import hashlib
import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from seer._files import replace_file
from seer._redact import MARK
from seer.errors import RecordError
from seer.runs import Run, open_run
from seer.viewer._assets import bundle, stylesheet
from seer.viewer._claims import checked_claims
from seer.viewer._fragments import line_fragments, notebook_fragments
from seer.viewer._json import dump
from seer.viewer._lines import LINE_KINDS, LineKind, described, slim
from seer.viewer._notebooks import read_notebook
from seer.viewer._redaction import Redaction, Scrubber

MOST_BLOBS = 48 * 1024 * 1024
"""Bytes of large values that one file contains; further values are left out and counted."""
FORMATTED = 16 * 1024 * 1024
"""Bytes of each record that get fragments; lines after them are shown as plain text."""
# Host and process of a run are useless to others or reveal too much. With the hash of a removed
# value, a reader could check guesses.
_PRIVATE = frozenset({"writer", "program", "notebook", "events_head", "calls_head"})
_PRIVATE_IN_LINES = frozenset({"$raw", "key", "result_digest", "call", "address"})


@dataclass(frozen=True)
class SharedPage:
    """The file, and a report of the redaction."""

    html: str
    report: dict[str, Any]
    """Counts of `secrets`, `paths`, `fields`, `images`, `arrays`, `large`, and the `bytes`."""


def share(run: Run | Path | str, path: Path | str, *, redact: Redaction | None = None) -> Path:
    """Write a run as one self-contained HTML file.

    Args:
        run: The run, its folder or its id.
        path: The file to write; it is replaced if it exists.
        redact: What to remove; by default, text that looks like a credential and personal paths.

    Raises:
        RecordError: The record cannot be read.
        RunNotFoundError: There is no such run.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    page = shared_page(opened, redact or Redaction())
    target = Path(path)
    try:
        replace_file(target, page.html)
    except OSError as error:
        raise RecordError(f"{target}: cannot be written: {error}") from error
    return target


def shared_page(run: Run, redaction: Redaction) -> SharedPage:
    """The run as a page; see `share`."""
    try:
        return _shared_page(run, redaction)
    except RecursionError as error:
        raise RecordError(
            f"{run.run_id} has values that are nested too deeply to be shared; leave out their "
            "fields, or the field `notebook`"
        ) from error


def _shared_page(run: Run, redaction: Redaction) -> SharedPage:
    scrubber = Scrubber(redaction, folder=run.info.program.cwd)
    packing = _Packing(run, scrubber)
    lines: list[dict[str, Any]] = []
    for kind in LINE_KINDS:
        at = 0
        for end, body in run.lines(kind):
            lines.append(packing.line(kind, body, at, end))
            at = end
    notebook = None if scrubber.hides("notebook") else packing.notebook(read_notebook(run))
    public = {key: item for key, item in described(run).items() if key not in _PRIVATE}
    shown = cast("dict[str, Any]", scrubber.value(public))
    data: dict[str, Any] = {
        "run": shown,
        "lines": lines,
        "blobs": packing.blobs,
        "notebook": notebook,
        "claims": scrubber.value(checked_claims(run)),
    }
    page = _page(str(shown.get("name") or run.run_id), data)
    report = {
        **dict.fromkeys(("secrets", "paths", "fields", "images", "arrays", "large"), 0),
        **scrubber.counts,
        "bytes": len(page.encode()),
    }
    return SharedPage(page, report)


class _Packing:
    """Collects the lines for the file, and the blobs that they refer to."""

    def __init__(self, run: Run, scrubber: Scrubber) -> None:
        self._run = run
        self._scrubber = scrubber
        self._left = MOST_BLOBS
        self.blobs: dict[str, str] = {}

    def line(self, kind: LineKind, body: dict[str, Any], at: int, end: int) -> dict[str, Any]:
        packed = self._body(body, end - at)
        line = {"kind": kind, "at": at, "next": end, "body": packed}
        if at < FORMATTED:
            fragments = line_fragments(kind, packed, self._packed_blob)
            if fragments:
                line["fragments"] = fragments
        return line

    def _packed_blob(self, digest: str) -> bytes | None:
        """A value as it is in the file, so that removed parts do not come back."""
        found = self.blobs.get(digest)
        return None if found is None else base64.b64decode(found)

    def _body(self, body: dict[str, Any], length: int) -> dict[str, Any]:
        slimmed = slim(body, length).items()
        body = {key: item for key, item in slimmed if key not in _PRIVATE_IN_LINES}
        for name in ("argument_buffers", "result_buffers"):
            for digest in cast("list[str]", body.get(name) or []):
                if self._scrubber.redaction.arrays:
                    self._take(digest, bytes)
                else:
                    self._scrubber.counts["arrays"] += 1
        for name in ("arguments", "result"):
            if isinstance(body.get(name), str) and "interface" in body:  # a call of the gate
                body[name] = self._scrubber.json_text(body[name])
        if self._scrubber.hides(str(body.get("type"))) and "text" in body:  # such as `thinking`
            self._scrubber.counts["fields"] += 1
            body["text"] = MARK
        self._blobs_in(body)
        return cast("dict[str, Any]", self._scrubber.value(body))

    def notebook(self, found: dict[str, Any] | None) -> Any:
        if not self._scrubber.redaction.images and found is not None:
            found = cast("dict[str, Any]", self._without_images(found))
        scrubbed = cast("dict[str, Any] | None", self._scrubber.value(found))
        return scrubbed and {**scrubbed, "fragments": notebook_fragments(scrubbed)}

    def _without_images(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._without_images(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            kept: dict[str, Any] = {}
            for key, item in cast("dict[str, Any]", value).items():
                if key.startswith("image/"):
                    self._scrubber.counts["images"] += 1
                else:
                    kept[key] = self._without_images(item)
            return kept
        return value

    def _blobs_in(self, value: Any, name: str = "") -> None:
        if isinstance(value, list):
            for item in cast("list[Any]", value):
                self._blobs_in(item, name)
        elif isinstance(value, dict):
            mapping = cast("dict[str, Any]", value)
            if "$blob" in mapping and not self._scrubber.hides(name):
                self._take_reference(mapping)
            else:
                for key, item in mapping.items():
                    self._blobs_in(item, key)

    def _take_reference(self, mapping: dict[str, Any]) -> None:
        digest = str(mapping["$blob"])
        if mapping.get("encoding") != "base64":
            self._take(digest, self._scrub_bytes)
        elif self._scrubber.redaction.images:
            self._take(digest, bytes)
        else:
            self._scrubber.counts["images"] += 1

    def _scrub_bytes(self, data: bytes) -> bytes:
        text = self._scrubber.json_text(data.decode("utf-8", "surrogatepass"))
        return text.encode("utf-8", "surrogatepass")

    def _take(self, digest: str, change: Callable[[bytes], bytes]) -> None:
        if digest in self.blobs:
            return
        data = self._run.blob(digest)
        if len(data) > self._left:
            self._scrubber.counts["large"] += 1
            return
        self._left -= len(data)
        self.blobs[digest] = base64.b64encode(change(data)).decode("ascii")


def _page(title: str, data: dict[str, Any]) -> str:
    script, style = bundle(), stylesheet()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src blob:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    # Only `<` can end a script element, and JSON can escape it.
    record = dump(data).replace("<", "\\u003c")
    whole = title.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(whole)} · Seer</title>\n<style>{style}</style>\n</head>\n"
        f'<body>\n<div id="app"></div>\n'
        f'<script type="application/json" id="record">{record}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
