"""The app of ``attrim serve`` behind its guard, and a client that knows the token."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

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
