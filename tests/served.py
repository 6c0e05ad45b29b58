"""The app of ``attrim serve`` behind its guard, and a client that knows the token."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from starlette.testclient import TestClient

import forks
from attrim.web.app import make_app
from attrim.web.catalogue import Catalogue
from attrim.web.guard import Guard
from attrim.web.live import LiveModel

TOKEN = "a-token-for-the-tests"
PORT = 8787
ADDRESS = f"http://127.0.0.1:{PORT}"


def client(live: LiveModel | None = None, catalogue: Catalogue | None = None, **options: Any) -> TestClient:
    """A client that knows the token, of an app behind its guard."""
    app = make_app(catalogue or Catalogue([]), live)
    guarded = Guard(app, TOKEN, ["127.0.0.1", "localhost"], PORT)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    made = TestClient(guarded, base_url=ADDRESS, headers=headers, raise_server_exceptions=False, **options)
    made.app_inside = app  # type: ignore[attr-defined]
    return made


@contextmanager
def serving(*words: str) -> Iterator[tuple[forks.Process, str]]:
    """The command in a process of its own, and the address that it printed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = forks.Process("-m", "attrim", "serve", "--port", "0", *words, **pipes)
    try:
        assert started.stdout is not None
        lines = []
        for line in started.stdout:
            lines.append(line)
            if found := re.search(r"http://\S+", line):
                yield started, found[0]
                return
        assert started.stderr is not None
        raise AssertionError("".join(lines) + started.stderr.read())
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()


def call(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """One request with the token of the address."""
    parts = urlsplit(url)
    asked = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=60)
    token = parts.query.removeprefix("token=")
    content = None if body is None else json.dumps(body)
    given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    asked.request(method, path, content, given)
    answer = asked.getresponse()
    found = answer.status, answer.read()
    asked.close()
    return found
