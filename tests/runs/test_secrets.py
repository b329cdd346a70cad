"""Secrets are in no file of a record, wherever they were planted and however they were split.

It registers secrets directly, as providers and harness do.
"""

import base64
import io
import json
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from seer import _redact
from seer._redact import Redactor, known_secrets, register_secrets
from seer.environment._secrets import load_secrets
from seer.runs import Run, RunRecord, new_run_id

SECRET = "hf_QmFzZTY0IGlzIG5vdCBlbm91Z2g"
CORE = SECRET[6:22]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the secrets that a test registers."""
    monkeypatch.setattr(_redact, "_registered", set[str]())
    yield


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    register_secrets([SECRET])
    return RunRecord.create(tmp_path, new_run_id(), meta={"task": f"use {SECRET}"})


def files(record: RunRecord) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in record.folder.rglob("*") if path.is_file()}


def assert_clean(record: RunRecord, *, core: str = CORE) -> None:
    """No file holds the secret, plain, wide or as base64."""
    encoded = base64.b64encode(core.encode()).decode().rstrip("=")[:-2]
    for path, data in files(record).items():
        for form in (core.encode(), core.encode("utf-32-le"), encoded.encode()):
            assert form not in data, path


def picture(secret: str, *, packed: bool) -> bytes:
    info = PngInfo()
    info.add_text("Comment", f"made with {secret}", zip=packed)
    info.add_itxt("Other", f"{secret} again", zip=packed)
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, "png", pnginfo=info)
    return file.getvalue()


def test_every_field_of_every_file_is_clean(record: RunRecord) -> None:
    try:
        raise RuntimeError(f"the token {SECRET} was refused")
    except RuntimeError:
        words = traceback.format_exc()
    record.event({"text": SECRET, SECRET: [SECRET, {"a": f"x{SECRET}y"}], "long": words * 400})
    record.call({"arguments": json.dumps([[SECRET], {}]), "result": SECRET, "caller": SECRET})
    record.blob(b"\0\1" + SECRET.encode() + b"\2")
    record.blob(SECRET.encode("utf-32-le"))
    record.artifact("notes.txt", f"do not tell: {SECRET}")
    record.artifact("raw.bin", b"\xff" + SECRET.encode())
    record.update(interfaces={"tools": {"env": {"TOKEN": SECRET}}})
    record.close("error", {"message": words})
    assert_clean(record)
    assert any(b"[redacted]" in data for data in files(record).values())
    Run(record.folder).verify()


@pytest.mark.parametrize("cut", [1, 5, 6, 12, len(SECRET) - 6, len(SECRET) - 1])
def test_a_secret_in_two_pieces_cannot_be_put_together_again(record: RunRecord, cut: int) -> None:
    first, second = f"the token is {SECRET[:cut]}", f"{SECRET[cut:]} and so on"
    record.event({"type": "text", "text": first})
    record.event({"type": "text", "text": second})
    record.event({"type": "tool_result", "content": [{"text": first}, {"text": second}]})
    record.close("completed")
    texts = [event.get("text", "") for event in Run(record.folder).events()]
    assert SECRET not in "".join(texts)
    assert_clean(record)
    shown = "".join(texts).replace("the token is ", "").replace(" and so on", "")
    assert len(shown.replace("[redacted]", "")) < 6, "too much of it is left to see"


def test_ordinary_texts_are_left_alone(record: RunRecord) -> None:
    event = {"text": "hf_ and hf_Qm are no secrets", "tail": "it begins with hf_Qm"}
    record.event(event)
    record.close("completed")
    assert list(Run(record.folder).events()) == [event]


@pytest.mark.parametrize("packed", [False, True])
def test_a_pictures_own_text_is_clean_and_the_picture_stays(
    record: RunRecord, packed: bool
) -> None:
    data = picture(SECRET, packed=packed)
    assert packed or SECRET.encode() in data
    encoded = base64.b64encode(data).decode()
    image = {"type": "image", "mime_type": "image/png", "encoding": "base64", "data": encoded}
    record.event({"content": [image], "raw": {"source": {"data": encoded}}})
    record.close("completed")
    assert_clean(record)
    [event] = Run(record.folder).events()
    for text in (event["content"][0]["data"], event["raw"]["source"]["data"]):
        kept = Image.open(io.BytesIO(base64.b64decode(text)))
        kept.load()
        assert (kept.size, kept.getpixel((1, 1))) == ((3, 2), (255, 0, 0))
        assert "Comment" not in kept.info
    innocent = picture("nothing at all", packed=packed)
    assert Redactor().redact_bytes(innocent) == innocent


def test_a_damaged_picture_is_kept_without_the_secret(record: RunRecord) -> None:
    for data in (picture(SECRET, packed=False)[:60], b"\x89PNG\r\n\x1a\n" + SECRET.encode()):
        encoded = base64.b64encode(data).decode()
        record.event({"encoding": "base64", "data": encoded, "text": encoded})
    record.close("completed")
    assert_clean(record)


def test_a_notebook_is_clean_in_its_cells_outputs_and_pictures(record: RunRecord) -> None:
    half = len(SECRET) // 2
    notebook = {
        "cells": [
            {
                "cell_type": "code",
                "source": [f"token = '{SECRET}'\n", "print(token)"],
                "outputs": [
                    {"output_type": "stream", "text": [f"{SECRET}\n"]},
                    {"output_type": "stream", "text": [f"split {SECRET[:half]}"]},
                    {"output_type": "stream", "text": [f"{SECRET[half:]} here\n"]},
                    {
                        "output_type": "display_data",
                        "data": {
                            "image/png": base64.b64encode(picture(SECRET, packed=True)).decode()
                        },
                    },
                    {"output_type": "error", "traceback": [f"ValueError: {SECRET}"]},
                ],
            }
        ],
        "nbformat": 4,
    }
    path = record.artifact("notebook.ipynb", json.dumps(notebook))
    record.close("completed")
    assert_clean(record)
    kept = json.loads(path.read_text())
    assert kept["cells"][0]["source"][1] == "print(token)"
    outputs = kept["cells"][0]["outputs"]
    joined = "".join(part for output in outputs[:3] for part in output["text"])
    assert SECRET[:half] not in joined
    assert SECRET[half:] not in joined
    image = base64.b64decode(outputs[3]["data"]["image/png"])
    assert zlib.crc32(image) and "Comment" not in Image.open(io.BytesIO(image)).info


def test_a_notebook_without_secrets_is_kept_byte_for_byte(record: RunRecord) -> None:
    text = '{ "cells":[], "odd": "spacing\\u00e9" }\n'
    assert record.artifact("notebook.ipynb", text).read_text() == text


def test_a_key_of_many_lines_is_found_line_by_line(tmp_path: Path) -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
    register_secrets([key])
    record = RunRecord.create(tmp_path, new_run_id(), meta={})
    record.event({"lines": key.splitlines(), "text": key})
    record.close("completed")
    for data in files(record).values():
        assert b"MIIEvQ" not in data
        assert b"hkiG9w" not in data


def test_a_secret_that_is_learnt_during_the_run_is_removed_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunRecord.create(tmp_path, new_run_id(), meta={})
    monkeypatch.setenv("LATE_TOKEN", "late-0123456789")
    load_secrets(["LATE_TOKEN"])
    assert "late-0123456789" in known_secrets()
    record.event({"text": "it is late-0123456789"})
    record.close("completed")
    assert all(b"late-0123" not in data for data in files(record).values())


def test_secrets_of_any_characters_are_no_trouble() -> None:
    odd: list[Any] = ["a\udcffbcdef", "(.*)+[", "\\n\\n\\n", "    ", "é" * 8, "\n\n\n\n\n"]
    redactor = Redactor(odd)
    for value in odd:
        assert value not in redactor.redact(f"<{value}>") or not value.strip()
