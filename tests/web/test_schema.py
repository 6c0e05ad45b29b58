"""Whatever the description of the app allows, and what it does not, is answered without an error of the server."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans
from starlette.testclient import TestClient

from attrim.web.catalogue import Catalogue
from attrim.web.live import LiveModel
from served import client

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra 'dev' (schemathesis)")
from schemathesis.core import NOT_SET  # noqa: E402

EXAMPLES = 20
"""For each address, of questions that fit the description and of such that do not."""
PLAIN = {"/api/about", "/api/runs", "/api/live"}
ADDRESSES = PLAIN | {
    "/api/runs/{run}/progress", "/api/payload", "/api/live/look", "/api/live/relevance",
    "/api/live/examples/{number}/image", "/api/live/looks/{key}/overview",
    "/api/live/looks/{key}/tile", "/api/live/looks/{key}/token",
}  # fmt: skip


def test_all_addresses_are_described(equipped: LiveModel) -> None:
    described = client(equipped).get("/api/openapi.json").json()
    assert set(described["paths"]) == ADDRESSES


@pytest.mark.parametrize(
    ("address", "mode"),
    [
        pytest.param(address, mode, id=f"{address} {mode.value}")
        for address in sorted(ADDRESSES)
        for mode in schemathesis.GenerationMode
        # What takes nothing cannot be asked wrongly.
        if mode is schemathesis.GenerationMode.POSITIVE or address not in PLAIN
    ],
)
def test_no_question_makes_an_error_of_the_server(
    equipped: LiveModel, runs: Path, address: str, mode: schemathesis.GenerationMode
) -> None:
    asked = client(equipped, Catalogue([runs]))
    key = looked(asked)
    schema = schemathesis.openapi.from_dict(asked.get("/api/openapi.json").json())
    (operation,) = (found.ok() for found in schema.include(path=address).get_all_operations())
    answered: set[int] = set()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy(generation_mode=mode), known=booleans())
    def check(case: schemathesis.Case, known: bool) -> None:
        names = case.path_parameters or {}
        if known:  # what the server has made up itself cannot be guessed
            names = {**names, **({"key": key} if "key" in names else {}), **({"run": RUN} if "run" in names else {})}
        path = address.format(**{name: quote(str(value), safe="") for name, value in names.items()})
        body = {} if isinstance(case.body, type(NOT_SET)) else {"content": json.dumps(case.body, default=str)}
        query = {name: value for name, value in (case.query or {}).items() if value is not None}
        try:
            answer = asked.request(
                case.method, path, params=query, headers={"Content-Type": "application/json"}, **body
            )
        except (UnicodeEncodeError, ValueError):
            return  # no client can send that
        assert answer.status_code < 500, answer.text
        answered.add(answer.status_code)
        if answer.status_code != 200:
            assert list(answer.json()) == ["error"]

    RUN = asked.get("/api/runs").json()["runs"][0]["id"]
    check()
    assert answered


def looked(asked: TestClient) -> str:
    """The key of one look."""
    answer = asked.post("/api/live/look", json={"input": {"text": "a b"}, "edits": {"threshold": {"value": 0.1}}})
    found: str = answer.json()["edited"]["key"]
    return found
