"""Who is answered, how much may be asked, and what the answers say about themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from attrim.web.guard import HEADERS, MOST_BYTES, POLICY, Guard
from served import ADDRESS, PORT, TOKEN, client


@pytest.fixture
def strangers() -> TestClient:
    """A client that does not know the token."""
    made = client()
    del made.headers["Authorization"]
    return made


def sentence(answer: Any) -> str:
    """The one sentence of an error."""
    said = answer.json()
    assert list(said) == ["error"]
    assert "Traceback" not in said["error"]
    assert "\n" not in said["error"]
    return said["error"]


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/openapi.json", "/static/style.css", "/nowhere"])
def test_nothing_is_said_without_the_token(strangers: TestClient, path: str) -> None:
    answer = strangers.get(path)
    assert answer.status_code == 401
    assert "token is missing or wrong" in sentence(answer)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Cookie": f"attrim-{PORT}=wrong"},
        {"Cookie": f"attrim-{PORT + 1}={TOKEN}"},
        {"Cookie": "a=b; attrim=\\x00;;;=; ="},
    ],
)
def test_a_wrong_token_is_refused(strangers: TestClient, headers: dict[str, str]) -> None:
    assert strangers.get("/api/runs", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"token {TOKEN}"},
        {"Cookie": f"other=1; attrim-{PORT}={TOKEN}"},
    ],
)
def test_the_token_is_taken_from_a_header_or_a_cookie(strangers: TestClient, headers: dict[str, str]) -> None:
    assert strangers.get("/api/runs", headers=headers).status_code == 200


def test_the_page_is_opened_with_the_token_in_its_address_and_keeps_it_as_a_cookie(strangers: TestClient) -> None:
    assert strangers.get("/?token=wrong").status_code == 401
    opened = strangers.get(f"/?token={TOKEN}")
    assert opened.status_code == 200
    kept = opened.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Strict" in kept
    # By hand, because the jar of the client knows no cookies of addresses without a dot.
    assert strangers.get("/api/runs", headers={"Cookie": kept.partition(";")[0]}).status_code == 200


def test_only_the_page_itself_is_opened_by_a_token_in_the_address(strangers: TestClient) -> None:
    assert strangers.get(f"/api/runs?token={TOKEN}").status_code == 401
    assert strangers.post(f"/?token={TOKEN}").status_code == 401


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"127.0.0.1.evil.example:{PORT}",
     f"10.0.0.7:{PORT}", "", f"[::1]x:{PORT}", f"127.0.0.1:{PORT}:{PORT}"],
)  # fmt: skip
def test_another_host_is_refused(host: str) -> None:
    """A name that was made to point to this machine (DNS rebinding) is not one of ours."""
    answer = client().get("/api/runs", headers={"Host": host})
    assert answer.status_code == 403
    assert "Host header" in sentence(answer)


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"LOCALHOST:{PORT}"])
def test_own_hosts_are_answered(host: str) -> None:
    assert client().get("/api/runs", headers={"Host": host}).status_code == 200


def test_at_every_interface_any_address_is_ours_but_no_other_name() -> None:
    inside = client().app_inside  # type: ignore[attr-defined]
    guarded = Guard(inside, TOKEN, ["0.0.0.0", "workstation"], PORT, everywhere=True)
    asked = TestClient(guarded, base_url=ADDRESS, headers={"Authorization": f"Bearer {TOKEN}"})
    for host, status in {"10.0.0.7": 200, "workstation": 200, "[fe80::1]": 200, "evil.example": 403}.items():
        assert asked.get("/api/runs", headers={"Host": f"{host}:{PORT}"}).status_code == status, host


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1"])
def test_pages_of_other_sites_are_refused(origin: str) -> None:
    answer = client().post("/api/live/look", json={}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "other sites" in sentence(answer)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_that_the_browser_says_come_from_other_sites_are_refused(site: str) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert client().get("/api/runs", headers=headers).status_code == 403
    followed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    assert client().get("/", headers=followed).status_code == 200  # a link that somebody clicked on


def test_own_pages_are_answered() -> None:
    headers = {"Origin": ADDRESS, "Sec-Fetch-Site": "same-origin"}
    assert client().get("/api/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/nowhere", "/static/style.css", "/api/live"])
def test_every_answer_says_how_it_may_be_used(path: str, strangers: TestClient) -> None:
    for asked in (client(), strangers):
        headers = asked.get(path).headers
        for name, value in HEADERS.items():
            assert headers[name] == value, name


def test_the_policy_allows_no_inline_script_and_nothing_from_elsewhere() -> None:
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert POLICY.startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    ["/static/../../../pyproject.toml", "/static/..%2f..%2f..%2fpyproject.toml", "/static/%2e%2e/%2e%2e/payload.py",
     "/static//etc/passwd", "/static/..\\..\\payload.py", "/static/vendor/../../payload.py", "/static/", "/static/.",
     "/static/README.md", "/static/style.css%00.js"],
)  # fmt: skip
def test_no_path_leads_out_of_the_static_files(path: str) -> None:
    answer = client().get(path)
    assert answer.status_code == 404
    assert "There is no such file" in sentence(answer) or "Not Found" in sentence(answer)


@pytest.mark.parametrize("run", ["../../etc", "..%2f..", "0" * 15, "0" * 17, "Z" * 16, "%00" * 16])
def test_runs_are_named_by_numbers_only(run: str) -> None:
    assert client().get(f"/api/runs/{run}/progress").status_code in (404, 422)


def test_a_body_that_says_that_it_is_large_is_refused_at_once() -> None:
    answer = client().post("/api/live/look", content=b"{}", headers={"Content-Length": str(MOST_BYTES + 1)})
    assert answer.status_code == 413
    assert "256 KiB" in sentence(answer)


def test_a_body_that_goes_on_is_cut_off() -> None:
    sent = []

    def pieces() -> Any:
        for _ in range(100):
            sent.append(1)
            yield b" " * (MOST_BYTES // 4)

    answer = client().post("/api/live/look", content=pieces())
    assert answer.status_code == 413


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "²", "9" * 40])
def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    answer = client().post("/api/live/look", content=b"{}", headers={"Content-Length": length.encode("latin-1")})
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"[]", b"null", b'{"input": {"text": NaN}}', b"[" * 100_000, b"\xff\xfe", b'{"input": 1e999}',
     json.dumps({"input": {"text": "a"}, "run": "rm"}).encode()],
)  # fmt: skip
def test_bodies_that_are_no_question_are_one_sentence(ask: TestClient, body: bytes) -> None:
    answer = ask.post("/api/live/look", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert len(sentence(answer)) < 400
