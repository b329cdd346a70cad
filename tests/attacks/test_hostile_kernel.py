"""A kernel that lies to the controller, and files that it plants, harm only its own session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from seer.errors import RemoteFileError
from seer.execution import LocalSession, create_local_session

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

FORGE = """
import base64, json, os
kernel = get_ipython().kernel
def forge(kind, raw, parent=None, signed=True):
    signer = kernel.session
    parent = kernel.get_parent()["header"] if parent is None else parent
    parts = [json.dumps(signer.msg_header(kind), default=str).encode(),
             json.dumps(parent, default=str).encode(), b"{}", raw]
    signature = signer.sign(parts) if signed else b"0" * 64
    kernel.iopub_thread.send_multipart([b"topic", b"<IDS|MSG>", signature, *parts])
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSession]:
    folder = tmp_path_factory.mktemp("hostile") / "work"
    with create_local_session(workspace_dir=folder) as opened:
        yield opened


@pytest.mark.parametrize(
    "code",
    [
        "forge('stream', b'not json')",
        "forge('stream', b'[]')",
        "forge('stream', b'{\"text\": 5, \"name\": {}}')",
        "forge('stream', b'{\"text\": \"x\"}', signed=False)",
        "forge('stream', b'\\xff\\xfe\\x00')",
        'forge(\'stream\', b\'{"name": "stdout", "text": "\\\\ud800"}\')',
        'forge(\'error\', b\'{"ename": 1, "evalue": [], "traceback": {"a": 1}}\')',
        'forge(\'error\', b\'{"ename": "\\\\ud800", "evalue": "\\\\udfff"}\')',
        "forge('execute_input', b'{\"execution_count\": ' + b'9' * 5000 + b'}')",
        "forge('status', b'{\"execution_state\": []}')",
        "forge('display_data', b'{\"data\": {\"x\": ' + b'{\"a\":' * 90000 + b'1' + b'}' * 90002)",
        "for depth in range(940, 1000): forge('display_data',"
        " b'{\"data\": {\"x\": ' + b'{\"a\":' * depth + b'1' + b'}' * (depth + 2))",
        'forge(\'display_data\', b\'{"data": {"application/json": {"a": NaN}}}\')',
        'forge(\'update_display_data\', b\'{"data": {}, "transient": {"display_id": []}}\')',
        "forge('stream', b' ' * (17 << 20))",
        "kernel.iopub_thread.send_multipart([b''] * 500)",
    ],
    ids=range(16),
)
def test_forged_messages_leave_the_session_usable(session: LocalSession, code: str) -> None:
    result = session.exec(f"{FORGE}\n{code}", timeout=30)
    assert result.status in ("ok", "error")
    assert session.exec("print('usable')").text == "usable\n"


def test_a_flood_of_unsigned_messages_is_one_line_in_the_log(
    session: LocalSession, caplog: pytest.LogCaptureFixture
) -> None:
    flood = "for _ in range(5000): forge('stream', b'{}', signed=False)"
    assert session.exec(f"{FORGE}\n{flood}", timeout=60).status == "ok"
    session.restart()
    assert session.exec("print('usable')").text == "usable\n"
    lines = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert len(lines) <= 2
    assert "messages of the kernel in all" in lines[-1]


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp"])
def test_images_that_are_bombs_or_broken_are_decoded_nowhere_near(
    session: LocalSession, kind: str
) -> None:
    heads = {
        "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\x7f" * 8,
        "jpeg": b"\xff\xd8\xff\xe0\0\0" * 50000,
        "gif": b"GIF89a" + b"\xff" * 200,
        "webp": b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"\xff" * 100,
    }
    code = (
        f"raw = base64.b64encode({heads[kind][:60]!r} * {max(1, len(heads[kind]) // 60)})\n"
        f"forge('display_data', json.dumps({{'data': {{'image/{kind}': raw.decode()}}}}).encode())"
    )
    assert session.exec(f"{FORGE}\n{code}", timeout=30).status == "ok"
    assert session.exec("print('usable')").text == "usable\n"


def test_endless_output_is_cut_and_costs_bounded_memory(session: LocalSession) -> None:
    before = _resident()
    result = session.exec("for _ in range(40):\n    print('x' * 2_000_000)", timeout=60)
    assert result.status == "ok"
    assert len(result.text) < 30_000
    assert _resident() - before < 64 << 20


def test_planted_files_are_not_followed_waited_for_or_read_without_end(
    session: LocalSession, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("host")
    outside.chmod(0o666)
    planted = session.exec(
        "import os\n"
        "os.mkfifo('fifo'); os.symlink('/dev/zero', 'zero'); os.symlink('/etc/shadow', 'shadow')\n"
        f"os.symlink({str(outside)!r}, 'outside'); os.symlink('/proc/1/environ', 'environ')\n"
        "os.symlink('loop', 'loop'); open('sparse', 'wb').truncate(6 << 30)"
    )
    assert planted.status == "ok", planted.text
    for name in ("fifo", "zero", "shadow", "outside", "loop", "sparse"):
        with pytest.raises(RemoteFileError):
            session.read_file(name)
    # Links are resolved in the jail. This one shows what the kernel reads anyway: nothing, or the
    # environment of the jail's own first process.
    own = session.exec("print(open('environ', 'rb').read())")
    try:
        shown = repr(session.read_file("environ"))
    except RemoteFileError:
        assert own.status == "error"
    else:
        assert own.text.strip() == shown == repr(b"PWD=/\0")
    session.write_file("outside", b"owned")
    assert outside.read_text() == "host"


def test_the_workspace_can_be_moved_away_without_harm(session: LocalSession) -> None:
    session.exec("import os\nos.makedirs('sub', exist_ok=True)\nos.symlink('/', 'sub/root')")
    with pytest.raises(RemoteFileError):
        session.write_file("sub/root/planted", b"x")
    assert not Path("/planted").exists()
    assert session.exec("print('usable')").text == "usable\n"


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")
