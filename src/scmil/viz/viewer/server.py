"""The addresses of the viewer, and its server, which listens on this computer only."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from scmil.core.extras import import_extra
from scmil.errors import DataError, OptionError, OutputError, ScmilError
from scmil.viz.spread import PREFIX
from scmil.viz.viewer import connections
from scmil.viz.viewer.access import COOKIE, MOST_HEADERS, Guard
from scmil.viz.viewer.browser import open_browser
from scmil.viz.viewer.export import layer_geojson
from scmil.viz.viewer.library import Library
from scmil.viz.viewer.responses import JPEG, Responses
from scmil.viz.viewer.workers import Workers

TEXT = "text/plain; charset=utf-8"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": TEXT,  # licences
}
OUTLINES = "/api/slide/{i:int}/outlines"
OUTLINE_READERS = 2  # processes at a time
SECONDS_TO_END = 2.0  # granted to busy threads when the server stops


class Response(NamedTuple):
    """Content, media type and further headers of a response."""

    content: bytes
    media_type: str
    headers: dict[str, str] = {}  # noqa: RUF012


class Query:
    """The parameters of a request; KeyError if there is no such slide or model."""

    def __init__(self, request: Any, library: Library) -> None:
        self.path, self.options = request.path_params, request.query_params
        self.slide, self.model = self.path.get("i", 0), int(self.options.get("model", "0"))
        if self.slide >= len(library.slides) or not 0 <= self.model < len(library.models):
            raise KeyError("no such slide or model")

    def numbers(self, *names: str) -> list[int]:
        """Numbers in the path of the request, by their names."""
        return [self.path[name] for name in names]


def addresses(responses: Responses) -> dict[str, Callable[[Query], Any]]:
    """The handler of each address. Slides are identified by their position in the list, files of
    the page by their name in a fixed table.
    """
    library = responses.library
    folder = files("scmil.viz.viewer") / "static"
    static = {
        item.name: Response(item.read_bytes(), MEDIA_TYPES[Path(item.name).suffix])
        for item in folder.iterdir()
        if Path(item.name).suffix in MEDIA_TYPES
    }

    def scores(query: Query) -> bytes:
        values = library.values(query.model, query.slide, query.options["kind"])
        return values.astype("<f4").tobytes()

    def layer(query: Query) -> Response:
        least = float(query.options["least"]) if "least" in query.options else None
        scores = library.scores(query.model, query.slide)
        spread = {
            kind: library.values(query.model, query.slide, kind)
            for kind in library.kinds(query.model, query.slide)
            if kind.startswith(PREFIX)
        }
        content = layer_geojson(scores, query.options["kind"], least, spread)
        return Response(content, "application/geo+json", {"content-disposition": "attachment"})

    return {
        "/": lambda query: static["index.html"],
        "/static/{name}": lambda query: static[query.path["name"]],
        "/api/slides": lambda query: responses.slides(),
        "/api/slide/{i:int}": lambda query: responses.slide(query.slide, query.model),
        "/api/slide/{i:int}/scores": scores,
        OUTLINES: lambda query: responses.outlines(query.slide),
        "/api/slide/{i:int}/layer.geojson": layer,
        "/api/slide/{i:int}/code/{t:int}": lambda query: library.code(
            query.model, query.slide, *query.numbers("t")
        ),
        "/api/slide/{i:int}/tile/{t:int}": lambda query: Response(
            responses.tile(query.slide, query.model, *query.numbers("t")), JPEG
        ),
        "/api/atlas/{k:int}": lambda query: library.atom(query.model, *query.numbers("k")),
        "/api/atlas/{k:int}/{n:int}": lambda query: Response(
            *responses.atom_picture(query.model, *query.numbers("k", "n"))
        ),
        "/dz/{i:int}/{level:int}/{x:int}_{y:int}.jpg": lambda query: Response(
            responses.pyramid(query.slide, *query.numbers("level", "x", "y")), JPEG
        ),
    }


def make_response(
    handler: Callable[[Query], Any], request: Any, library: Library
) -> tuple[int, Response]:
    """Call a handler; errors become a status and a message."""
    try:
        result = handler(Query(request, library))
    except (KeyError, IndexError):
        return 404, Response(b"not found.", TEXT)
    except OptionError as error:
        return 400, Response(str(error).encode(), TEXT)
    except (ScmilError, OSError) as error:
        return 422, Response(str(error).encode(), TEXT)
    except ValueError:
        return 400, Response(b"a parameter is not a number.", TEXT)
    if isinstance(result, Response):
        return 200, result
    if isinstance(result, bytes):
        return 200, Response(result, "application/octet-stream")
    return 200, Response(json.dumps(result, allow_nan=False).encode(), "application/json")


def application(responses: Responses, workers: Executor, readers: Executor) -> Any:
    """The web application. Annotations are read by other threads than images, so that a slow
    annotation does not delay images.
    """
    applications, routing = (
        import_extra("starlette.applications", "viewer"),
        import_extra("starlette.routing", "viewer"),
    )
    http_response = import_extra("starlette.responses", "viewer").Response

    def endpoint(handler: Callable[[Query], Any], executor: Executor) -> Callable[[Any], Any]:
        async def respond(request: Any) -> Any:
            work = partial(make_response, handler, request, responses.library)
            try:
                status, made = await asyncio.get_running_loop().run_in_executor(executor, work)
            except asyncio.CancelledError:  # by `Server._end_requests`
                status, made = 503, Response(b"the viewer has been stopped.", TEXT)
            headers = {**made.headers, "content-type": made.media_type}
            return http_response(made.content, status, headers)

        return respond

    routes = [
        routing.Route(path, endpoint(handler, readers if path == OUTLINES else workers))
        for path, handler in addresses(responses).items()
    ]
    return applications.Starlette(routes=routes)


# --------------------------------------------------------------------------------------- the server


class Server:
    """A server on 127.0.0.1, whose port is bound at once; `run` serves until `stop`.

    `prefix`, with which all addresses begin, and `token` are random for each server; `address`
    contains both. `arrived` is set when a browser has sent the token.
    """

    def __init__(self, library: Library, port: int = 0) -> None:
        uvicorn = import_extra("uvicorn", "viewer")
        if not library.slides:
            raise DataError(
                "there are no slides to show: neither scores nor slide files were found. "
                "Specify a folder of slides, or bags with --bags."
            )
        self._socket = _bind_port(port)
        self.port = self._socket.getsockname()[1]
        self.prefix, self.token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.arrived = Event()
        # One thread per processor: more would only make each read take longer.
        self._workers = Workers(max(os.cpu_count() or 2, 2), "viewer")
        self._readers = Workers(OUTLINE_READERS, "outlines")
        self._responses = Responses(library)
        app = application(self._responses, self._workers, self._readers)
        config = uvicorn.Config(
            Guard(app, self.port, self.prefix, self.token, self.arrived.set),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http=connections.protocol(),
            limit_concurrency=256,
            backlog=connections.BACKLOG,
            h11_max_incomplete_event_size=MOST_HEADERS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._shutdown, self._server.shutdown = self._server.shutdown, self._end_requests

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://127.0.0.1:{self.port}{self.path('/')}?token={self.token}"

    @property
    def cookie(self) -> str:
        """The cookie that a browser sends instead of the token."""
        return f"{COOKIE}={self.token}"

    def path(self, path: str) -> str:
        """One of the `addresses`, with the prefix of this server."""
        return f"/{self.prefix}{path}"

    def run(self) -> None:
        """Serve until stopped or interrupted. Threads that do not end in time end with the
        program.
        """
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._responses.annotations.stop()
            self._readers.stop(SECONDS_TO_END)
            if self._workers.stop(SECONDS_TO_END):
                self._responses.close()

    async def _end_requests(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the open requests immediately when the server stops."""
        for task in list(self._server.server_state.tasks):
            task.cancel()
        await self._shutdown(sockets)

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


def serve(
    library: Library,
    port: int = 0,
    ready: Callable[[str], None] | None = None,
    no_browser: Callable[[str], None] | None = None,
) -> None:
    """Serve a library on this computer until the program is interrupted.

    `ready` is called with the address, which contains the token. If `no_browser` is given, the page
    is opened in the browser, and `no_browser` is called with the reason if that fails.
    """
    server = Server(library, port)
    if ready:
        ready(server.address)
    with open_browser(server.address, server.arrived, no_browser) if no_browser else nullcontext():
        server.run()


def _bind_port(port: int) -> socket.socket:
    """A socket that listens already, so that an early browser waits instead of failing."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(("127.0.0.1", port))
    except OSError as error:
        bound.close()
        raise OutputError(
            f"cannot bind to port {port}: {error.strerror}. Use another port, or --port 0 to "
            "select a free one."
        ) from None
    bound.listen(connections.BACKLOG)
    return bound
