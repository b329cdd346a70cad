"""Only this machine's own page gets an answer, and only with the token."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.made import study

PRIVATE = ("/api/about", "/api/runs", "/api/runs/x", "/api/runs/x/stream", "/api/runs/x/blob/y")


@pytest.mark.parametrize("path", PRIVATE)
@pytest.mark.parametrize(
    "given", [None, "", "Bearer ", "Bearer wrong", "Basic x", "bearer", "Bearer é"]
)
def test_nothing_is_told_without_the_token(client: Any, path: str, given: str | None) -> None:
    answer = client(path, headers={"Authorization": given})
    assert answer.status == 401
    assert "token" in answer.json()["error"]


def test_the_token_in_the_address_or_a_cookie_does_not_count(client: Any) -> None:
    token = client.viewer.token
    for path in (f"/api/runs?token={token}", f"/api/runs?access_token={token}"):
        answer = client(path, headers={"Authorization": None, "Cookie": f"token={token}"})
        assert answer.status == 401
    assert "set-cookie" not in {name.lower() for name in client("/").headers}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "0.0.0.0", "[::2]:1"]
)
def test_a_rebound_name_is_refused_even_with_the_token(client: Any, host: str) -> None:
    for path in ("/", "/api/runs"):
        assert client(path, headers={"Host": host}).status in {400, 421}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9999", "LOCALHOST", "[::1]:80"])
def test_a_forwarded_port_works(client: Any, host: str) -> None:
    assert client("/api/runs", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_origins_are_refused(client: Any, headers: dict[str, str]) -> None:
    for path in ("/", "/js/main.js", "/api/runs"):
        assert client(path, headers=headers).status == 403


def test_a_link_to_the_page_may_be_followed_from_anywhere(client: Any) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Authorization": None}
    assert client("/", headers=headers).status == 200
    assert client("/js/main.js", headers=headers).status == 403
    assert client("/api/runs", headers=headers).status == 403


def test_the_own_origin_is_answered_without_leave_for_others(client: Any) -> None:
    answer = client("/api/runs", headers={"Origin": f"http://127.0.0.1:{client.viewer.port}"})
    assert answer.status == 200
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/nothing", "/nothing", "/js/main.js"])
def test_every_answer_forbids_what_is_not_the_pages_own(client: Any, path: str) -> None:
    headers = {name.lower(): value for name, value in client(path).headers.items()}
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy and "trusted-types 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_itself_holds_no_inline_code(client: Any) -> None:
    page = client("/", headers={"Authorization": None}).body.decode()
    assert '<script type="module" src=' in page
    assert "onload" not in page and "<style" not in page and "style=" not in page


def test_the_server_listens_on_loopback_only(client: Any) -> None:
    try:
        own = socket.gethostbyname(socket.gethostname())
    except socket.gaierror:
        own = "127.0.0.1"
    if own.startswith("127."):
        pytest.skip("this machine has no other address by its name")
    with pytest.raises(OSError):
        socket.create_connection((own, client.viewer.port), timeout=2).close()


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/..%2f..%2fetc",
        "/api/runs/../runs",
        "/api/runs/%2e%2e",
        "/api/runs/.",
        "/api/runs/a%00b",
        "/api/runs/index.sqlite",
        "/api/runs/%2fetc%2fpasswd/notebook",
        "/..%2f..%2f_api.py",
        "/js/..%2f..%2f_api.py",
        "/%2e%2e/_api.py",
    ],
)
def test_no_path_leads_out(client: Any, root: Path, path: str) -> None:
    (root / "run.json").write_text('{"format": 1, "status": "completed"}')
    assert client(path).status in {400, 404}


def test_no_path_leads_out_of_a_run(client: Any, root: Path) -> None:
    made = study(root)
    (root / "secret").write_text("secret")
    kept = made.folder / "artifacts"
    (kept / "link").symlink_to(root / "secret")
    for name in ("..%2frun.json", "../run.json", "link", "%2fetc%2fpasswd", "nothing"):
        answer = client(f"/api/runs/{made.run_id}/artifact/{name}")
        assert answer.status in {403, 404} and b"secret" not in answer.body.replace(b"secret'", b"")
    for digest in ("x", "..%2f..%2frun.json", "0" * 64, "0" * 63 + "/"):
        assert client(f"/api/runs/{made.run_id}/blob/{digest}").status in {404, 422}
    assert client(f"/api/runs/{made.run_id}/artifact/notebook.ipynb").status == 200


def test_large_and_malformed_requests_are_refused(client: Any, root: Path) -> None:
    run = study(root).run_id
    assert client(f"/api/runs/{run}/share", body={"secrets": ["x" * 300_000]}).status == 413
    bodies: list[Any] = [[], {"secrets": [1]}, {"paths": "yes"}, {"what": 1}]
    for body in bodies:
        assert client(f"/api/runs/{run}/share", body=body).status == 400
    for query in ("offset=-1", "limit=x", "offset=" + "9" * 40, "order=drop"):
        assert client(f"/api/runs?{query}").status == 400
    assert client(f"/api/runs/{run}/stream?events=x").status == 400


def test_a_viewer_that_only_reads_changes_nothing(client: Any, root: Path) -> None:
    run = study(root).run_id
    answer = client(f"/api/runs/{run}/control", body={"action": "stop"})
    assert answer.status == 403 and "--allow-control" in answer.json()["error"]
    assert client(f"/api/runs/{run}/control").status in {404, 405}
