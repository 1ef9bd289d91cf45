"""The viewer's addresses, and the server that answers them on this computer alone."""

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

from scmil.errors import DataError, OptionError, OutputError, ScmilError
from scmil.core.extras import need
from scmil.viz.viewer import connections
from scmil.viz.viewer.responses import JPEG, Answers
from scmil.viewer.browser import open_browser
from scmil.viz.viewer.access import COOKIE, MOST_HEADERS, Guard
from scmil.viz.viewer.export import layer_geojson
from scmil.viz.viewer.library import Library
from scmil.viewer.workers import Workers

TEXT = "text/plain; charset=utf-8"
PAGES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
PAGES[".txt"] = TEXT  # licences
OUTLINES = "/api/slide/{i:int}/truth"
READERS_OF_OUTLINES = 2  # processes at once
SECONDS_TO_END = 2.0  # for a thread that is at work when the server stops


class Sent(NamedTuple):
    """An answer as it is sent."""

    content: bytes
    kind: str
    headers: dict[str, str] = {}  # noqa: RUF012


class Ask:
    """The numbers and words of a request; a slide or model that there is not is a KeyError."""

    def __init__(self, request: Any, library: Library) -> None:
        self.numbers, self.words = request.path_params, request.query_params
        self.slide, self.model = self.numbers.get("i", 0), int(self.words.get("model", "0"))
        if self.slide >= len(library.slides) or not 0 <= self.model < len(library.models):
            raise KeyError("no such slide or model")

    def of(self, *names: str) -> list[Any]:
        """Several parts of the address."""
        return [self.numbers[name] for name in names]


def addresses(answers: Answers) -> dict[str, Callable[[Ask], Any]]:
    """What is at which address. A place in the list stands for a slide, a name in a fixed table for a file of the page."""
    library = answers.library
    folder = files("scmil.viz.viewer") / "static"
    kinds = {item.name: PAGES[Path(item.name).suffix] for item in folder.iterdir() if Path(item.name).suffix in PAGES}
    static = {name: Sent((folder / name).read_bytes(), kind) for name, kind in kinds.items()}

    def scores(ask: Ask) -> bytes:
        return library.scores(ask.model, ask.slide).of(ask.words["kind"]).astype("<f4").tobytes()

    def layer(ask: Ask) -> Sent:
        least = float(ask.words["least"]) if "least" in ask.words else None
        content = layer_geojson(library.scores(ask.model, ask.slide), ask.words["kind"], least)
        return Sent(content, "application/geo+json", {"content-disposition": "attachment"})

    return {
        "/": lambda ask: static["index.html"],
        "/static/{name}": lambda ask: static[ask.numbers["name"]],
        "/api/slides": lambda ask: answers.slides(),
        "/api/slide/{i:int}": lambda ask: answers.slide(ask.slide, ask.model),
        "/api/slide/{i:int}/scores": scores,
        OUTLINES: lambda ask: answers.truth(ask.slide),
        "/api/slide/{i:int}/layer.geojson": layer,
        "/api/slide/{i:int}/code/{t:int}": lambda ask: library.code(ask.model, ask.slide, *ask.of("t")),
        "/api/slide/{i:int}/tile/{t:int}": lambda ask: Sent(answers.tile(ask.slide, ask.model, *ask.of("t")), JPEG),
        "/api/atlas/{k:int}": lambda ask: library.atom(ask.model, *ask.of("k")),
        "/api/atlas/{k:int}/{n:int}": lambda ask: Sent(*answers.atom_picture(ask.model, *ask.of("k", "n"))),
        "/dz/{i:int}/{level:int}/{x:int}_{y:int}.jpg": lambda ask: Sent(
            answers.pyramid(ask.slide, *ask.of("level", "x", "y")), JPEG
        ),
    }


def answer(function: Callable[[Ask], Any], request: Any, library: Library) -> tuple[int, Sent]:
    """The status and content of an answer; what is refused is said in words."""
    try:
        made = function(Ask(request, library))
    except (KeyError, IndexError):
        return 404, Sent(b"there is nothing of that name.", TEXT)
    except OptionError as error:
        return 400, Sent(str(error).encode(), TEXT)
    except (ScmilError, OSError) as error:
        return 422, Sent(str(error).encode(), TEXT)
    except ValueError:
        return 400, Sent(b"a number is needed.", TEXT)
    if isinstance(made, Sent):
        return 200, made
    if isinstance(made, bytes):
        return 200, Sent(made, "application/octet-stream")
    return 200, Sent(json.dumps(made, allow_nan=False).encode(), "application/json")


def application(answers: Answers, workers: Executor, readers: Executor) -> Any:
    """The web application. Outlines are read by threads of their own, so that a slow one delays no picture."""
    applications, routing = need("starlette.applications", "viewer"), need("starlette.routing", "viewer")
    response = need("starlette.responses", "viewer").Response

    def endpoint(function: Callable[[Ask], Any], executor: Executor) -> Callable[[Any], Any]:
        async def respond(request: Any) -> Any:
            work = partial(answer, function, request, answers.library)
            try:
                status, sent = await asyncio.get_running_loop().run_in_executor(executor, work)
            except asyncio.CancelledError:  # by `Server._end_requests`
                status, sent = 503, Sent(b"the viewer has been stopped.", TEXT)
            return response(sent.content, status, {**sent.headers, "content-type": sent.kind})

        return respond

    routes = [
        routing.Route(path, endpoint(function, readers if path == OUTLINES else workers))
        for path, function in addresses(answers).items()
    ]
    return applications.Starlette(routes=routes)


# ---------------------------------------------------------------------------------------------------------- the server


class Server:
    """A server on 127.0.0.1 that holds its port already; `address` has its secret, `run` serves until `stop`.

    `prefix`, with which all addresses begin, and `token` are drawn anew for each server. `arrived` is set when somebody has
    come with the token.
    """

    def __init__(self, library: Library, port: int = 0) -> None:
        uvicorn = need("uvicorn", "viewer")
        if not library.slides:
            raise DataError("there is no slide to show: no scores, and no slides. Give --bags, or a folder of slides.")
        self._socket = _held(port)
        self.port = self._socket.getsockname()[1]
        self.prefix, self.token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.arrived = Event()
        # As many threads as processors: more would read at once, and each take longer.
        self._workers = Workers(max(os.cpu_count() or 2, 2), "viewer")
        self._readers = Workers(READERS_OF_OUTLINES, "outlines")
        self._answers = Answers(library)
        app = application(self._answers, self._workers, self._readers)
        config = uvicorn.Config(
            Guard(app, self.port, self.prefix, self.token, self.arrived.set), log_level="warning", access_log=False,
            server_header=False, proxy_headers=False, lifespan="off", ws="none", http=connections.protocol(),
            limit_concurrency=256, backlog=connections.BACKLOG, h11_max_incomplete_event_size=MOST_HEADERS,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._shutdown, self._server.shutdown = self._server.shutdown, self._end_requests

    @property
    def address(self) -> str:
        """Where the page is, with its secret."""
        return f"http://127.0.0.1:{self.port}{self.path('/')}?token={self.token}"

    @property
    def cookie(self) -> str:
        """What a browser sends instead of the token."""
        return f"{COOKIE}={self.token}"

    def path(self, path: str) -> str:
        """Where something of the list of `addresses` is found on this server."""
        return f"/{self.prefix}{path}"

    def run(self) -> None:
        """Serve until stopped or interrupted; a thread that does not end in time is left to end with the program."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._answers.outlines.stop()
            self._readers.stop(SECONDS_TO_END)
            if self._workers.stop(SECONDS_TO_END):
                self._answers.close()

    async def _end_requests(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer at once, when the server stops, what threads are still at work on."""
        for task in list(self._server.server_state.tasks):
            task.cancel()
        await self._shutdown(sockets)

    def stop(self) -> None:
        """End `run`, which is in another thread."""
        self._server.should_exit = True


def serve(
    library: Library,
    port: int = 0,
    ready: Callable[[str], None] | None = None,
    no_browser: Callable[[str], None] | None = None,
) -> None:
    """Serve a library on this computer until it is interrupted.

    `ready` is given the address, with its secret. With `no_browser` the page is opened in the browser, and `no_browser` is
    given the reason if that fails.
    """
    server = Server(library, port)
    if ready:
        ready(server.address)
    with open_browser(server.address, server.arrived, no_browser) if no_browser else nullcontext():
        server.run()


def _held(port: int) -> socket.socket:
    """A port of our own; it listens at once, so that a browser that comes early waits, and is not turned away."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except OSError as error:
        held.close()
        raise OutputError(f"port {port} cannot be had: {error.strerror}. Take another, or --port 0 for any.") from None
    held.listen(connections.BACKLOG)
    return held
