"""The viewer's addresses, and the server that answers them on this computer alone."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from scmil.errors import DataError, OptionError, OutputError, ScmilError
from scmil.extras import need
from scmil.viewer.answers import JPEG, Answers
from scmil.viewer.guard import MOST_HEADERS, Guard
from scmil.viewer.layer import layer_geojson
from scmil.viewer.library import Library

TEXT = "text/plain; charset=utf-8"
PAGES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
PAGES[".txt"] = TEXT  # licences
KEEP = {"cache-control": "private, max-age=3600"}  # a picture of a slide does not change while one looks at it
FRESH = {"cache-control": "no-store"}


class Sent(NamedTuple):
    """An answer as it is sent."""

    content: bytes
    kind: str
    headers: dict[str, str] = FRESH


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
    folder = files("scmil.viewer") / "static"
    kinds = {item.name: PAGES[Path(item.name).suffix] for item in folder.iterdir() if Path(item.name).suffix in PAGES}
    static = {name: Sent((folder / name).read_bytes(), kind) for name, kind in kinds.items()}

    def scores(ask: Ask) -> bytes:
        return library.scores(ask.model, ask.slide).of(ask.words["kind"]).astype("<f4").tobytes()

    def layer(ask: Ask) -> Sent:
        least = float(ask.words["least"]) if "least" in ask.words else None
        content = layer_geojson(library.scores(ask.model, ask.slide), ask.words["kind"], least)
        return Sent(content, "application/geo+json", {**FRESH, "content-disposition": "attachment"})

    return {
        "/": lambda ask: static["index.html"],
        "/static/{name}": lambda ask: static[ask.numbers["name"]],
        "/api/slides": lambda ask: answers.slides(),
        "/api/slide/{i:int}": lambda ask: answers.slide(ask.slide, ask.model),
        "/api/slide/{i:int}/scores": scores,
        "/api/slide/{i:int}/truth": lambda ask: library.truth(ask.slide),
        "/api/slide/{i:int}/layer.geojson": layer,
        "/api/slide/{i:int}/code/{t:int}": lambda ask: library.code(ask.model, ask.slide, *ask.of("t")),
        "/api/slide/{i:int}/tile/{t:int}": lambda ask: Sent(
            answers.tile(ask.slide, ask.model, *ask.of("t")), JPEG, KEEP
        ),
        "/api/atlas/{k:int}": lambda ask: library.atom(ask.model, *ask.of("k")),
        "/api/atlas/{k:int}/{n:int}": lambda ask: Sent(*answers.atom_picture(ask.model, *ask.of("k", "n")), KEEP),
        "/dz/{i:int}/{level:int}/{x:int}_{y:int}.jpg": lambda ask: Sent(
            answers.pyramid(ask.slide, *ask.of("level", "x", "y")), JPEG, KEEP
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


def application(answers: Answers, workers: ThreadPoolExecutor, port: int, token: str) -> Guard:
    """The web application, behind its guard."""
    applications, routing = need("starlette.applications", "viewer"), need("starlette.routing", "viewer")
    response = need("starlette.responses", "viewer").Response

    def endpoint(function: Callable[[Ask], Any]) -> Callable[[Any], Any]:
        async def respond(request: Any) -> Any:
            work = partial(answer, function, request, answers.library)
            status, sent = await asyncio.get_running_loop().run_in_executor(workers, work)
            return response(sent.content, status, {**sent.headers, "content-type": sent.kind})

        return respond

    routes = [routing.Route(path, endpoint(function)) for path, function in addresses(answers).items()]
    return Guard(applications.Starlette(routes=routes), port, token)


# ---------------------------------------------------------------------------------------------------------- the server


class Server:
    """A server on 127.0.0.1 that holds its port already; `address` has its secret, `run` serves until `stop`."""

    def __init__(self, library: Library, port: int = 0) -> None:
        uvicorn = need("uvicorn", "viewer")
        if not library.slides:
            raise DataError("there is no slide to show: no scores, and no slides. Give --bags, or a folder of slides.")
        self._socket = _held(port)
        self.port, self.token = self._socket.getsockname()[1], secrets.token_urlsafe(24)
        self.address = f"http://127.0.0.1:{self.port}/?token={self.token}"
        # As many threads as processors: more would read at once, and each take longer.
        self._workers = ThreadPoolExecutor(max(os.cpu_count() or 2, 2), thread_name_prefix="viewer")
        self._answers = Answers(library)
        config = uvicorn.Config(
            application(self._answers, self._workers, self.port, self.token), log_level="warning", access_log=False,
            server_header=False, proxy_headers=False, lifespan="off", ws="none", http="h11", limit_concurrency=256,
            h11_max_incomplete_event_size=MOST_HEADERS, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until stopped or interrupted."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._workers.shutdown(wait=True, cancel_futures=True)
            self._answers.close()

    def stop(self) -> None:
        """End `run`, which is in another thread."""
        self._server.should_exit = True


def serve(library: Library, port: int = 0, ready: Callable[[str], None] | None = None) -> None:
    """Serve a library on this computer until it is interrupted; `ready` is told the address, with its secret."""
    server = Server(library, port)
    if ready:
        ready(server.address)
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
    held.listen(128)
    return held
