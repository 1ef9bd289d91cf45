"""The whole way on painted slides: pixels, tiles, features, models with and without sparse coding, heatmaps, a report.

Every stage writes files and finds those of an earlier start, as it does on real slides; nothing here is for the demo alone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scmil.bags import Bag, standardise
from scmil.cohort import TileSettings, bags_folder, encode_slides, find_cohort, tile_slides
from scmil.encoders import load_encoder
from scmil.errors import DataError
from scmil.files import write_atomically
from scmil.formats import open_bags
from scmil.labels import read_labels
from scmil.model import MILModel, build_model
from scmil.recipes import Recipe
from scmil.slides import open_slide
from scmil.splits import holdout
from scmil.training import fit

ENCODER = "efficientnet-lite0"  # its ImageNet weights are a package: nothing is downloaded
SIDE_PX, EPOCHS, RATE = 3000, 40, 2e-4
OnSlide = Callable[[str, str], None]


def make_slides(out: Path, slides: int, seed: int) -> Path:
    """Paint the cohort, unless it is there; the table of labels, which is written last."""
    from scmil.slides.synthetic import paint_cohort

    labels = out / "slides" / "labels.csv"
    if not labels.is_file():
        paint_cohort(out / "slides", slides=slides, size=(SIDE_PX, SIDE_PX), mpp=0.5, seed=seed, annotations=True)
    return labels


def make_bags(out: Path, on_slide: OnSlide | None = None) -> Path:
    """Tissue, tiles and features of every slide; the folder of the bags."""
    work = out / "work"
    encoder = load_encoder(ENCODER)
    outcomes = [
        tile_slides(find_cohort(out / "slides"), work, TileSettings(), on_slide=on_slide),
        encode_slides(work, encoder, on_slide=on_slide),
    ]
    if failed := [name for outcome in outcomes for name in outcome.failed]:
        raise DataError(f"slides that failed: {', '.join(failed)}. The causes are in {work / 'failures.csv'}.")
    return bags_folder(work, encoder.name)


def document(bags: Path, labels: Path, folds: int, repeats: int, seed: int) -> dict[str, Any]:
    """The comparison as an experiment file would say it."""
    model = {"aggregator": "abmil-gated", "embed": [128]}
    return {
        "title": "Painted slides, from pixels to report",
        "about": f"Slides that look like H&E, half of them with a small tumour; tiles of 128 microns through {ENCODER} with "
        "ImageNet weights; ABMIL-Gated without sparse coding, with it, and with a plain layer of the same width in its "
        "place. The slides are painted, so this shows that the way works, and nothing about medicine.",
        "data": {"dataset": str(bags), "name": "painted slides", "labels": str(labels)},
        "protocol": {"folds": folds, "repeats": repeats, "seed": seed, "selection": ["last"]},
        "training": {"recipe": "paper", "epochs": EPOCHS, "learning_rate": RATE},
        "arms": [
            {"name": "ABMIL-Gated", "model": model},
            {"name": "ABMIL-Gated + SC", "against": "ABMIL-Gated", "model": {**model, "sparse_coding": True}},
            {"name": "ABMIL-Gated + linear", "against": "ABMIL-Gated", "model": {**model, "refine": "linear"}},
        ],
    }


def draw(out: Path, run: Path, bags: Path, labels: Path, seed: int, tumours: int = 3) -> None:
    """Heatmaps of slides that the model did not see in training, beside the planted truth, for the report of the run."""
    everything = list(open_bags(bags, labels=read_labels(labels)))
    split = holdout([bag.label for bag in everything], test=0.4, valid=0.0, seed=seed)
    train, test = standardise([everything[i] for i in split.train], [everything[i] for i in split.test])
    model = build_model(train[0].features.shape[1], 2, "abmil-gated", True, embed=[128], seed=seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # bags of a hundred tiles: a second thread would mostly wait
    try:
        fit(model, train, recipe=Recipe(epochs=EPOCHS, learning_rate=RATE), seed=seed)
    finally:
        torch.set_num_threads(threads)
    with_tumour = [bag for bag in test if bag.label == 1][:tumours]
    shown = [*with_tumour, *[bag for bag in test if bag.label == 0][:1]]
    folder = run / "pictures"
    rows: list[dict[str, Any]] = [{"words": "", "pictures": _pictures(model, bag, out, folder)} for bag in shown]
    rows[0]["words"] = WORDS
    write_atomically(folder / "pictures.json", json.dumps(rows, indent=1).encode())


WORDS = (
    "Slides that a model with sparse coding did not see in training. On the left the slide with the tumour that was painted, "
    "in red; on the right the model's attention, by rank within the slide: yellow is highest."
)


def _pictures(model: MILModel, bag: Bag, out: Path, folder: Path) -> list[dict[str, str]]:
    from scmil.slides.heatmap import draw_heatmap

    with torch.no_grad():
        prediction = model(bag.features)
    attention = prediction.attention.numpy()
    truth = _truth(out / "slides" / f"{bag.id}.geojson")
    assert bag.xy is not None  # our own bags have coordinates
    nothing = np.zeros((0, 2))
    told = f"{bag.id}: {'tumour' if bag.label else 'no tumour'}; probability of tumour {_tumour(prediction.logits):.2f}"
    with open_slide(out / "slides" / f"{bag.id}.svs") as slide:
        pictures = {
            f"{bag.id}-slide.jpg": (draw_heatmap(slide, nothing, 1, np.zeros(0), truth), told),
            f"{bag.id}-attention.jpg": (
                draw_heatmap(slide, bag.xy.numpy(), float(bag.provenance["side_level0"]), attention, truth),
                "attention",
            ),
        }
    return [_kept(folder / name, picture, caption) for name, (picture, caption) in pictures.items()]


def _tumour(logits: Any) -> float:
    return float(logits.softmax(-1)[1])


def _kept(path: Path, picture: Any, caption: str) -> dict[str, str]:
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=85)
    write_atomically(path, content.getvalue())
    return {"file": path.name, "caption": caption}


def _truth(path: Path) -> Sequence[Any]:
    from scmil.slides.geojson import read_geojson

    if not path.is_file():
        return ()
    return [
        np.asarray(polygon.exterior.coords)[:, :2] for region in read_geojson(path) for polygon in region.polygon.geoms
    ]


def label_counts(labels: Path) -> dict[str, int]:
    """How many slides have which label."""
    with labels.open(newline="") as file:
        rows = [row["label"] for row in csv.DictReader(file)]
    return {name: rows.count(name) for name in sorted(set(rows))}
