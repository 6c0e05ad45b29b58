"""The command: it serves until a signal, says what is wrong in one sentence, and frees the work of clients that go."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from attrim.cli import main
from attrim.errors import ParameterError
from attrim.web.server import Address
from served import call, serving


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_ends_cleanly(number: int) -> None:
    with serving("--model", "tiny-bert", "--kind", "sequence-classification") as (started, url):
        assert urlsplit(url).hostname == "127.0.0.1"
        assert len(urlsplit(url).query) > 40
        status, content = call(url, "POST", "/api/live/look", {"input": {"text": "a text"}})
        assert status == 200, content
        assert call(url, "GET", "/api/runs", Authorization="Bearer wrong")[0] == 401
        assert call(url, "GET", "/api/runs", Host="evil.example")[0] == 403
        started.send_signal(number)
        out, errors = started.communicate(timeout=120)
        assert started.returncode == 0, errors
        assert "The server has ended." in out
        assert errors == ""


def test_a_client_that_goes_frees_its_work() -> None:
    """A long pass is asked for and given up; the next question is answered much sooner than the pass would take."""
    text = "a long text " * 40
    body = {"input": {"text": text}, "edits": {"quantize": {"method": "linear-slog-clamped-midval", "bits": 4}}}
    with serving("--model", "tiny-bert", "--kind", "sequence-classification") as (started, url):
        parts = urlsplit(url)
        token = parts.query.removeprefix("token=")
        content = json.dumps(body)
        request = (
            f"POST /api/live/look HTTP/1.1\r\nHost: 127.0.0.1:{parts.port}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n{content}"
        )
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", parts.port or 0), timeout=10) as leaver:
                leaver.sendall(request.encode())
        began = time.monotonic()
        status, _ = call(url, "POST", "/api/live/look", {"input": {"text": "short"}})
        assert status == 200
        assert time.monotonic() - began < 20
        work = json.loads(call(url, "GET", "/api/about")[1])["work"]
        assert work["given_up"] > 0
        assert work["waiting"] == 0
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=120)
        assert started.returncode == 0
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "no-such-model-anywhere"], "no-such-model-anywhere"),
        (["/no/such/folder"], "There is no folder /no/such/folder"),
        (["--host", "0.0.0.0", "--model", "tiny-bert"], "--allow-network"),
        (["--port", "70000", "--model", "tiny-bert"], "0 to 65535"),
        (["--kind", "causal-lm"], "give --model"),
        (["--model", "tiny-bert", "--data", "x"], "give --task"),
        (["--model", "tiny-bert", "--max-length", "2"], "at least 8"),
        (["--model", "tiny-bert", "--memory", "0"], "at least 1"),
        (["--model", "tiny-bert", "--kind", "nonsense"], "model kind"),
        (["--model", "tiny-bert", "--averages", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["serve", *(["--port", "0"] if "--port" not in words else []), *words]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_nothing_to_show_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", str(tmp_path)]) == 2
    assert "There is nothing to show" in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--model", "tiny-bert", "--port", str(port)]) == 2
    assert f"Port {port} is taken" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["short", "with space in it at all", "ü" * 20, "semi;colon-semi;colon"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(ParameterError, match="at least 16 letters"):
        Address(token=token)


def test_tokens_are_new_each_time() -> None:
    assert Address().token != Address().token
    assert Address(token="a" * 16).token not in repr(Address(token="a" * 16))
