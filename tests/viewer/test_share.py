"""A shared run is one file that contains only what may be shown."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from seer.errors import RecordError, RunNotFoundError
from seer.events import Thinking
from seer.harness import Text, ToolCall, ToolResult
from seer.runs import Run
from seer.viewer import Redaction, share
from tests.viewer.made import Made, array, floats, png, study

CREDENTIALS = [
    "sk-ant-" + "x" * 30,
    *(f"{kind}_" + "a1B2" * 8 for kind in ("gho", "ghp", "ghr", "ghs", "ghu", "npm", "rpa")),
    *(f"{kind}-" + "a1B2" * 8 for kind in ("glpat", "pypi", "xoxb")),
    "github_pat_" + "a1B2" * 8,
    *(f"{kind}_eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjMifQ.a1B2a1B2" for kind in ("hf_oauth", "ghs")),
    "AKIA" + "A" * 16,
    "ASIA" + "A" * 16,
    "AIza" + "a1B2" * 9,
]
"""Texts of the forms that vendors give to credentials."""
TOKEN = "hf_" + "a1B2" * 8
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123456"


def embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'id="record">(.*?)</script>', path.read_text())
    assert found is not None
    return json.loads(found[1])


def everything(path: Path) -> str:
    """All text of a shared file, with base64 decoded."""
    data = embedded(path)
    blobs = [base64.b64decode(blob).decode("utf-8", "replace") for blob in data["blobs"].values()]
    return json.dumps(data) + "\n".join(blobs)


def test_the_file_needs_nothing_else(root: Path, tmp_path: Path) -> None:
    made = study(root)
    path = share(Run(made.folder), tmp_path / "run.html")
    text = path.read_text()
    assert not re.search(r'(?:src|href)="', text.partition('id="record"')[0])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "script-src 'sha256-" in policy[1]
    assert "unsafe" not in policy[1] and "connect-src" not in policy[1]
    data = embedded(path)
    assert [line["kind"] for line in data["lines"]].count("calls") == 5
    assert data["notebook"]["cells"]
    assert len(data["blobs"]) >= 2


def test_a_run_is_found_by_its_folder_or_not_at_all(root: Path, tmp_path: Path) -> None:
    made = study(root)
    assert share(made.folder, tmp_path / "a.html").exists()
    with pytest.raises(RunNotFoundError):
        share("nothing-like-this", tmp_path / "b.html")
    assert not (tmp_path / "b.html").exists()


def test_secrets_are_taken_out_of_every_part(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "environment-secret-value")
    secrets = [
        TOKEN,
        JWT,
        "environment-secret-value",
        "chosen by me",
        *CREDENTIALS,
    ]
    hidden = (
        " | ".join(secrets)
        + " https://joe:hunter22@example.com Authorization: Bearer abcdef0123456789"
    )
    made = Made(root, name=hidden, task=hidden)
    made.add(Text(text=hidden))
    made.add(Text(text=hidden + "x" * 6000))
    made.add(ToolCall(id="1", name="f", server="s", arguments={hidden: hidden}))
    made.call("f", {"a": hidden}, {"b": [hidden]})
    made.record.artifact(
        "notebook.ipynb", json.dumps({"cells": [{"cell_type": "raw", "source": hidden}]})
    )
    made.close(result=hidden)
    path = share(made.folder, tmp_path / "run.html", redact=Redaction(secrets=("chosen by me",)))
    text = everything(path) + path.read_text()
    for secret in (*secrets, "hunter22", "abcdef0123456789"):
        assert secret not in text, secret
    assert "[redacted]" in text


@pytest.mark.timeout(30)
def test_hostile_texts_are_searched_in_one_pass(root: Path, tmp_path: Path) -> None:
    made = Made(root)
    for text in ("-eyJ", "_eyJ", "-----BEGIN PRIVATE KEY-----\n", "http://a:", "Bearer sk-"):
        made.add(Text(text=text * (400_000 // len(text))))
    made.close()
    assert share(made.folder, tmp_path / "a.html").exists()


def test_a_private_key_without_its_end_is_taken_out(root: Path, tmp_path: Path) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA\n" * 900
    made = Made(root)
    made.add(Text(text=key))
    made.close()
    assert "MIIEpAIBAAK" not in everything(share(made.folder, tmp_path / "a.html"))


def test_names_that_begin_like_a_credential_are_kept(root: Path, tmp_path: Path) -> None:
    names = ["hf-internal-testing/tiny-random-gpt2", "npm-run-all-the-things-now", "sk-learn-extra"]
    made = Made(root)
    made.add(Text(text=" ".join(names)))
    made.close()
    kept = everything(share(made.folder, tmp_path / "a.html"))
    assert all(name in kept for name in names)


def test_paths_that_tell_who_one_is_are_shortened(root: Path, tmp_path: Path) -> None:
    home = str(Path.home())
    made = Made(root, program={"cwd": "/srv/projects/moon", "argv": ["main.py"]})
    made.add(Text(text=f"{home}/x.py /home/joe/y /Users/ann/z /srv/projects/moon/main.py /rooted"))
    made.close()
    kept = everything(share(made.folder, tmp_path / "a.html"))
    for private in (f"{home}/", "joe", "ann", "/srv/projects/moon", "argv"):
        assert private not in kept, private
    assert "/rooted" in kept and "main.py" in kept
    plain = share(made.folder, tmp_path / "b.html", redact=Redaction(paths=False))
    assert "/home/joe/y" in everything(plain)


def test_chosen_fields_pictures_and_arrays_are_left_out(root: Path, tmp_path: Path) -> None:
    made = Made(root, system_prompt="private words " * 500)
    made.add(Thinking(text="private thought"))
    made.add(
        ToolCall(
            id="1",
            name="f",
            server="s",
            arguments={"password": "pw", "deep": {"password": ["pw2"]}},
        )
    )
    made.tool("x", png())
    made.call("login", {"password": "pw3", "key": "kept"}, {"password": "pw4" * 30_000})
    made.call("f", {}, array(0, 3), arrays=[floats([1.0, 2.0, 3.0])])
    made.record.event({"type": "text", "text": "t", "raw": {"vendor": "vendor words"}})
    made.record.artifact(
        "notebook.ipynb",
        json.dumps({"cells": [{"outputs": [{"data": {"image/png": "aW1hZ2U="}}]}]}),
    )
    made.close()
    redaction = Redaction(
        fields=("system_prompt", "thinking", "password"), images=False, arrays=False
    )
    path = share(made.folder, tmp_path / "run.html", redact=redaction)
    text = everything(path)
    for private in ("private", '"pw"', "pw2", "pw3", "pw4", "vendor words", "aW1hZ2U="):
        assert private not in text, private
    assert "kept" in text
    assert all(b"pw4" not in base64.b64decode(b) for b in embedded(path)["blobs"].values())


def test_a_notebook_of_another_form_is_shared_and_one_that_is_too_deep_is_refused(
    client: Any, root: Path, tmp_path: Path
) -> None:
    odd: list[Any] = [{"cell_type": "code", "source": 5}, {"source": {"a": 1}}, 7]
    data = {"text/html": {"a": 1}, "text/markdown": 7}
    odd.append({"cell_type": "code", "source": "x = 1", "outputs": [{"data": data}, None]})
    made = Made(root)
    made.record.artifact("notebook.ipynb", json.dumps({"cells": odd}))
    made.close()
    shown = client(f"/api/runs/{made.run_id}/notebook").json()["fragments"]
    assert [bool(cell) for cell in shown] == [False, False, False, True]
    path = share(made.folder, tmp_path / "run.html")
    assert len(embedded(path)["notebook"]["cells"]) == 4
    # Depending on the version of Python, it can be read but not shared, or not even read.
    deep = "[" * 2000 + "]" * 2000
    (made.folder / "artifacts" / "notebook.ipynb").write_text(f'{{"cells": {deep}}}')
    with pytest.raises(RecordError, match="nested too deeply|maximum recursion depth"):
        share(made.folder, tmp_path / "deep.html")
    assert share(made.folder, tmp_path / "deep.html", redact=Redaction(fields=("notebook",)))


def test_the_preview_tells_what_a_redaction_does(client: Any, root: Path) -> None:
    made = Made(root)
    made.add(Text(text=f"{TOKEN} and {TOKEN} in /home/joe/x"))
    made.add(ToolResult(id="1", name="f", structured={"who": "me"}))
    made.close()
    where = f"/api/runs/{made.run_id}/share"
    found = client(where, body={"preview": True, "fields": ["who"]}).json()
    assert (found["secrets"], found["paths"], found["fields"]) == (2, 1, 1)
    page = client(where, body={})
    assert page.headers["content-type"] == "application/octet-stream"
    assert TOKEN.encode() not in page.body and b"<!doctype html>" in page.body


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "]]>", '"><img src=x>']
)
def test_nothing_in_a_record_ends_its_element(root: Path, tmp_path: Path, text: str) -> None:
    made = Made(root, name=text)
    made.add(Text(text=text))
    made.close()
    page = share(made.folder, tmp_path / "run.html")
    assert page.read_text().count("<script") == 2
    assert embedded(page)["run"]["name"] == text
