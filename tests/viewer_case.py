"""A painted slide, two models that have scored it, and a running viewer, for the tests of the viewer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from scmil.bags.bag import Bag
from scmil.models.model import build_model
from scmil.models.tile_scores import FORMAT, PAGE, Scores, score_bag, write_scores
from scmil.slides.synthetic import paint
from scmil.viz.viewer import Library, Server

SIDE = 128
PLACES = [(x, y) for y in range(128, 896, SIDE) for x in range(128, 896, SIDE)]
ATOMS = 16


def scored(id: str, sparse: bool) -> Scores:
    features = torch.randn(len(PLACES), 8, generator=torch.Generator().manual_seed(sum(map(ord, id))))
    made = {"side_level0": SIDE, "slide_size": (1000, 1000), "slide_mpp": 0.5}
    bag = Bag(id, features, label=1, patient=id, xy=torch.tensor(PLACES), provenance=made)
    model = build_model(8, 2, "abmil-gated", {"atoms": ATOMS} if sparse else False, embed=[8], seed=0)
    return score_bag(model, bag, ("normal", "tumour"))


def write_model(folder: Path, ids: list[str], sparse: bool, labels: bool = True) -> Path:
    """The scores of a model for slides, as `score_folder` writes them."""
    lines = {}
    (folder / "maps").mkdir(parents=True)
    for id in ids:
        scores = scored(id, sparse)
        write_scores(scores, folder / "maps")
        probabilities = scores.probabilities.tolist()
        lines[id] = {
            "label": 1 if labels else None, "patient": id, "tiles": len(scores), "probabilities": probabilities,
            "predicted": scores.predicted, "effective_tiles": scores.effective_tiles,
        }  # fmt: skip
    page = {"format": FORMAT, "model": folder.name, "classes": ["normal", "tumour"], "slides": lines}
    (folder / "maps" / PAGE).write_text(json.dumps({**page, "split": {"train": ids[:1], "test": ids[1:]}}))
    return folder


def write_atlas(model: Path, rows: list[dict[str, Any]]) -> None:
    (model / "maps" / "atlas").mkdir(exist_ok=True)
    (model / "maps" / "atlas" / "atlas.json").write_text(json.dumps({"atoms": rows}))


def write_case(home: Path) -> Path:
    """`slides/` with two painted slides and their truth, `sc` and `plain` that scored them, `sc` with an atlas."""
    for number, id in enumerate(("one", "two")):
        paint(home / "slides" / f"{id}.svs", size=(1000, 1000), seed=number, annotations=True)
    for name in ("sc", "plain"):
        write_model(home / name, ["one", "two"], sparse=name == "sc")
    tile = {"slide": "one", "x": 256, "y": 256, "side": SIDE, "code": 1.5, "file": "tiles/0/0.jpg"}
    rows = [
        {"atom": atom, "sentence": f"Atom {atom} likes nuclei.", "used": 0.5, "tiles": [tile]} for atom in range(ATOMS)
    ]
    write_atlas(home / "sc", rows)
    return home


@contextmanager
def running(library: Library, port: int = 0) -> Iterator[Server]:
    server = Server(library, port)
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
