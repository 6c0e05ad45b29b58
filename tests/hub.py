"""A model hub on this machine: one repository, served from a folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as fetching a model needs."""

    folder: Path
    name: str

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            if "/".join(parts[2:4]) != self.name:
                return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if "revision" in parts and parts[-1] not in ("main", SHA):
                return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self.answer(200, json.dumps({"id": self.name, "sha": SHA, "siblings": []}).encode())
        path = self.folder / parts[-1]
        if "/".join(parts[:2]) != self.name or not path.is_file():
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA})
        return self.answer(200, path.read_bytes(), {"ETag": f'"{parts[-1]}"', "X-Repo-Commit": SHA})

    def answer(self, status, content, headers=()):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def served(folder: Path, name: str) -> Iterator[str]:
    """Serve the files of a folder as the repository ``name``; yields the hub's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneRepository", (Hub,), {"folder": folder, "name": name}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
