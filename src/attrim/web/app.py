"""The addresses of the app: what each gives, in JSON or bytes; errors are one sentence, never a traceback."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from .. import __version__
from ..errors import AttrimError, shorten
from ..studies.findings import findings
from .catalogue import Catalogue, RunEntry
from .controls import LookRequest, RelevanceRequest
from .guard import Refused
from .live import LiveModel
from .looking import along_token
from .tiles import WireBytes, WireFormat, encode, thumbnail, tile
from .worker import Superseded, WorkLine

log = logging.getLogger(__name__)
STATIC = FilePath(__file__).parent.parent / "report" / "page" / "static"
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".txt": "text/plain",
    ".svg": "image/svg+xml",
}
MOST_COMPARED = 8
"""Runs side by side."""
LARGEST_THUMBNAIL = 128
SENTENCE = {"description": "One sentence.", "content": {"application/json": {"schema": {
    "type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}}}}  # fmt: skip
REFUSALS: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 403, 404, 405, 410, 413, 422, 503), SENTENCE)
BYTES: dict[int | str, dict[str, Any]] = {200: {"description": "Bytes; the headers say how to read them.", "content": {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}  # fmt: skip
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"description": "A PNG file.", "content": {"image/png": {"schema": {"type": "string"}}}}
}

RunId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
Key = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
Place = Annotated[int, Query(ge=0, le=1_000_000)]


def make_app(catalogue: Catalogue, live: LiveModel | None = None) -> FastAPI:
    """The app, without what guards it.

    Parameters
    ----------
    live : the model to try edits on; None where none was named.
    """
    line, reading = WorkLine(), WorkLine(waiting=32)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        line.close()
        reading.close()

    app = FastAPI(
        title="attrim serve",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        responses=REFUSALS,
    )
    app.state.line, app.state.reading, app.state.live = line, reading, live
    _add_errors(app)
    _add_page(app)
    _add_runs(app, catalogue, reading)
    _add_live(app, live, line)
    return app


def _add_errors(app: FastAPI) -> None:
    async def refused(_: Request, error: Any) -> Response:
        status = error.status if isinstance(error, Refused) else 422
        return _sentence(status, str(error), {"Retry-After": "1"} if status == 503 else None)

    async def misfit(_: Request, error: Any) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        said = shorten(str(first["msg"]).removeprefix("Value error, "), str)
        return _sentence(422, f"The request cannot be used ({shorten(where, str)}: {said})." if where else f"{said}.")

    async def known(_: Request, error: Any) -> Response:
        return _sentence(error.status_code, f"{error.detail}.", error.headers)

    async def superseded(_: Request, __: Any) -> Response:
        return _sentence(499, "The request was given up.")  # nobody is there to read it

    async def unforeseen(_: Request, error: Any) -> Response:
        log.error("An unforeseen error: %s", error, exc_info=error)
        return _sentence(500, "An unforeseen error; the server's output says more.")

    app.add_exception_handler(AttrimError, refused)
    app.add_exception_handler(RequestValidationError, misfit)
    app.add_exception_handler(HTTPException, known)
    app.add_exception_handler(Superseded, superseded)
    app.add_exception_handler(Exception, unforeseen)


def _sentence(status: int, text: str, headers: Any = None) -> Response:
    return JSONResponse({"error": text}, status, headers)


def _add_page(app: FastAPI) -> None:
    """The page and its files, which are listed when the server starts: no path of a request ever reaches the disk."""
    files = {
        path.relative_to(STATIC).as_posix(): path
        for path in sorted(STATIC.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return Response(files["index.html"].read_bytes(), media_type="text/html")

    @app.get("/static/{name:path}", include_in_schema=False)
    def static(name: str) -> Response:
        if name not in files:
            raise Refused(404, "There is no such file.")
        return Response(files[name].read_bytes(), media_type=TYPES[files[name].suffix])


def _add_runs(app: FastAPI, catalogue: Catalogue, reading: WorkLine) -> None:
    def entry_of(number: str) -> RunEntry:
        found = catalogue.entry(number)
        if found is None:
            raise Refused(404, "There is no such run; it may have been moved or removed.")
        return found

    @app.get("/api/runs")
    def runs() -> dict[str, Any]:
        """Every run: name, study, model, task, times and how far it is."""
        return {"runs": [entry.to_json() for entry in catalogue.entries()], "folders": len(catalogue.folders)}

    @app.get("/api/runs/{run}/progress")
    def progress(run: RunId) -> dict[str, Any]:
        """What a run holds so far."""
        return catalogue.progress(entry_of(run))

    @app.get("/api/payload")
    async def shown(
        request: Request, run: Annotated[list[str], Query(min_length=1, max_length=MOST_COMPARED)]
    ) -> Response:
        """What the runs found, as the report shows it; of several runs the differences too."""
        entries = [entry_of(number) for number in dict.fromkeys(run)]

        def read(_: object) -> bytes:
            from ..report.page.payload import payload

            return JSONResponse(payload([findings(entry.folder) for entry in entries])).body  # type: ignore[return-value]

        return Response(await reading.run(request.receive, read), media_type="application/json")


def _add_live(app: FastAPI, live: LiveModel | None, line: WorkLine) -> None:
    def require() -> LiveModel:
        if live is None:
            raise Refused(404, "No model was named; start the server with --model MODEL.")
        return live

    @app.get("/api/about")
    def about() -> dict[str, Any]:
        """What there is: the version, the name of the model, and how busy it is."""
        work = {"waiting": line.inside, "given_up": line.dropped, "bytes": 0 if live is None else live.remembered.size}
        return {"attrim": __version__, "model": None if live is None else live.source.name, "work": work}

    @app.get("/api/live")
    async def described(request: Request) -> dict[str, Any]:
        """The model: its sites, what it takes, and what edits can be made of."""
        model = require()
        return await line.run(request.receive, lambda _: model.describe())

    @app.get("/api/live/examples/{number}/image", responses=PICTURE, response_class=Response)
    async def image(request: Request, number: Annotated[int, Path(ge=0, le=1_000_000)]) -> Response:
        """The image of an example of the task."""
        model = require()
        return Response(await line.run(request.receive, lambda _: model.image(number)), media_type="image/png")

    @app.post("/api/live/look")
    async def looked(request: Request, asked: LookRequest) -> dict[str, Any]:
        """What the model answers, with edits and without; attention is fetched by the keys in the answer."""
        model = require()
        return await line.run(request.receive, lambda gone: model.look(asked.input, asked.edits, gone))

    @app.post("/api/live/relevance")
    async def explained(request: Request, asked: RelevanceRequest) -> dict[str, Any]:
        """Which tokens and regions an answer comes from, with more and more heads left out."""
        model = require()
        return await line.run(
            request.receive, lambda gone: model.relevance(asked.key, asked.levels, asked.example, gone)
        )

    @app.get("/api/live/looks/{key}/overview", responses=BYTES, response_class=Response)
    async def overview(
        key: Key, side: Annotated[int, Query(ge=1, le=LARGEST_THUMBNAIL)] = 32, format: WireFormat = "uint8"
    ) -> Response:
        """A small picture of every head, site by site; X-Shapes has heads, rows and columns of each site."""
        known = require().known(key)

        def made() -> list[WireBytes]:
            small = [thumbnail(view.weights, side) for view in known.views]
            high = max((float(each.max()) for each in small if each.size), default=0.0)
            return [encode(each, format, high) for each in small]

        return _bytes(await run_in_threadpool(made), format)

    @app.get("/api/live/looks/{key}/tile", responses=BYTES, response_class=Response)
    async def one_tile(
        key: Key, site: Place, head: Place, level: Place = 0, row: Place = 0, column: Place = 0,
        format: WireFormat = "float16",
    ) -> Response:  # fmt: skip
        """One tile of the attention of a head, at one level of the pyramid."""
        views = require().known(key).views
        if site >= len(views) or head >= len(views[site].weights):
            raise Refused(404, "There is no such site or head.")
        found = await run_in_threadpool(tile, views[site].weights[head], level, row, column)
        if found is None:
            raise Refused(404, "There is no such tile.")
        return _bytes([encode(found, format)], format)

    @app.get("/api/live/looks/{key}/token", responses=BYTES, response_class=Response)
    async def token(key: Key, stream: Annotated[str, Query(max_length=200)], position: Place) -> Response:
        """Where a token looks, for each site whose queries it is among, and then who looks at it; float16.

        X-Shapes has heads and tokens of each site, and X-Looks how many of them are about where it looks.
        """
        views = require().known(key).views
        sizes = [size for view in views for name, size in zip(view.site.streams, view.weights.shape[1:], strict=True)
                 if name == stream]  # fmt: skip
        if not sizes or position >= min(sizes):
            raise Refused(404, "There is no such token.")
        looks, seen = await run_in_threadpool(along_token, views, stream, position)
        answer = _bytes([encode(each, "float16") for each in (*looks, *seen)], "float16")
        answer.headers["X-Looks"] = str(len(looks))
        return answer


def _bytes(parts: list[WireBytes], format: WireFormat) -> Response:
    """Numbers of several sites, one after the other."""
    shapes = ";".join(",".join(map(str, part.shape)) for part in parts)
    high = max((part.high for part in parts), default=1.0)
    headers = {"X-Shapes": shapes, "X-High": repr(high), "X-Format": format}
    return Response(b"".join(part.data for part in parts), media_type="application/octet-stream", headers=headers)
