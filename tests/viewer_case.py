"""Two synthetic slides, two models that have scored them, a running viewer, and requests to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from scmil.bags.bag import Bag
from scmil.models.model import build_model
from scmil.models.score_files import FORMAT, PAGE, write_scores
from scmil.models.tile_scores import Scores, score_bag
from scmil.slides.synthetic import paint
from scmil.viz.viewer import Library, Server

SIDE = 128
PLACES = [(x, y) for y in range(128, 896, SIDE) for x in range(128, 896, SIDE)]
ATOMS = 16


def scored(slide_id: str, sparse: bool) -> Scores:
    """The scores of random tiles; the same for every call."""
    generator = torch.Generator().manual_seed(sum(map(ord, slide_id)))
    bag = Bag(
        slide_id,
        torch.randn(len(PLACES), 8, generator=generator),
        label=1,
        patient=slide_id,
        xy=torch.tensor(PLACES),
        provenance={"side_level0": SIDE, "slide_size": (1000, 1000), "slide_mpp": 0.5},
    )
    sparse_coding = {"atoms": ATOMS} if sparse else False
    model = build_model(8, 2, "abmil-gated", sparse_coding, embed=[8], seed=0)
    return score_bag(model, bag, ("normal", "tumour"))


def write_model(folder: Path, ids: list[str], sparse: bool, labels: bool = True) -> Path:
    """The scores of a model for slides, as `score_folder` writes them."""
    slides = {}
    (folder / "maps").mkdir(parents=True)
    for slide_id in ids:
        scores = scored(slide_id, sparse)
        write_scores(scores, folder / "maps")
        slides[slide_id] = {
            "label": 1 if labels else None,
            "patient": slide_id,
            "tiles": len(scores),
            "probabilities": scores.probabilities.tolist(),
            "predicted": scores.predicted,
            "effective_tiles": scores.effective_tiles,
        }
    page = {
        "format": FORMAT,
        "model": folder.name,
        "classes": ["normal", "tumour"],
        "slides": slides,
        "split": {"train": ids[:1], "test": ids[1:]},
    }
    (folder / "maps" / PAGE).write_text(json.dumps(page))
    return folder


def write_atlas(model: Path, rows: list[dict[str, Any]]) -> None:
    """An atlas with these rows."""
    (model / "maps" / "atlas").mkdir(exist_ok=True)
    (model / "maps" / "atlas" / "atlas.json").write_text(json.dumps({"atoms": rows}))


def write_case(home: Path) -> Path:
    """`slides/` with two annotated slides; the models `sc`, with an atlas, and `plain`."""
    for number, slide_id in enumerate(("one", "two")):
        paint(home / "slides" / f"{slide_id}.svs", size=(1000, 1000), seed=number, annotations=True)
    for name in ("sc", "plain"):
        write_model(home / name, ["one", "two"], sparse=name == "sc")
    tile = {"slide": "one", "x": 256, "y": 256, "side": SIDE, "code": 1.5, "file": "tiles/0/0.jpg"}
    rows = [
        {"atom": atom, "sentence": f"Atom {atom} responds to nuclei.", "used": 0.5, "tiles": [tile]}
        for atom in range(ATOMS)
    ]
    write_atlas(home / "sc", rows)
    return home


@contextmanager
def running(library: Library, port: int = 0) -> Iterator[Server]:
    """A server in a thread, stopped at the end of the block."""
    server = Server(library, port)
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(120)
        assert not thread.is_alive()


def ask(
    server: Server, path: str, method: str = "GET", body: bytes = b"", **headers: str
) -> tuple[HTTPResponse, bytes]:
    """Response and content of a request with prefix and cookie; `headers` replace the cookie."""
    sent = {"Cookie": server.cookie} | {k.replace("_", "-"): v for k, v in headers.items()}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(
        method,
        server.path(path),
        body or None,
        {name: value for name, value in sent.items() if value},
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def get(server: Server, path: str) -> bytes:
    """The content of a response with status 200."""
    response, content = ask(server, path)
    assert response.status == 200, content
    return content


def status(server: Server, path: str, **headers: str) -> int:
    """The status of a response."""
    return ask(server, path, "GET", b"", **headers)[0].status


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until a condition holds; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
