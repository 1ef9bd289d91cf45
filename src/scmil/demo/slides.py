"""The whole way on painted slides: pixels, tiles, features, models with and without sparse coding, heatmaps, a report.

Every stage writes files and finds those of an earlier start, as it does on real slides; nothing here is for the demo alone.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scmil.bags.bag import BagSet
from scmil.encoding.cohort import TileSettings, bags_folder, encode_slides, find_cohort, tile_slides
from scmil.encoding.encoders import load_encoder
from scmil.errors import DataError
from scmil.core.files import write_atomically
from scmil.bags.formats import open_bags
from scmil.bags.labels import read_labels
from scmil.studies.model_folder import read_page

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


# ------------------------------------------------------------------------------------------------------------ looking

MODELS = {"plain": False, "sparse_coding": True}  # the folders of the models to keep


def train_models(out: Path, bags: Path, labels: Path, seed: int) -> dict[str, Path]:
    """A model without and one with sparse coding, trained on the same slides; the folder of each."""
    from scmil import studies as study

    data = study.open_data(bags, labels)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # bags of a hundred tiles: a second thread would mostly wait
    try:
        for name, sparse in MODELS.items():
            study.train(
                data, out / "models" / name, sparse_coding=sparse, recipe="paper", epochs=EPOCHS, patience=None,
                valid=0.15, test=0.35, seed=seed,
            )  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    return {name: out / "models" / name for name in MODELS}


def look(out: Path, run: Path, bags: Path, labels: Path, models: dict[str, Path], seed: int) -> None:
    """Heatmaps, localisation, the PCA figure and the atlas, by the verbs that a user has, for the report of the run."""
    from scmil.viz.atlas_page import make_atlas
    from scmil.viz.heatmaps import draw_heatmaps
    from scmil.viz.lesions import locate
    from scmil.viz.pca import draw_pca

    everything, slides = open_bags(bags, labels=read_labels(labels)), out / "slides"
    unseen = read_page(models["plain"] / "study.json")["split"]["test"]
    found = {}
    for name, model in models.items():
        draw_heatmaps(model, everything.subset(unseen), slides=slides)
        found[name] = locate(model, everything, slides).page
    pca = draw_pca(list(models.values()), everything, out / "pca.png", annotations=slides, seed=seed)
    atlas = make_atlas(models["sparse_coding"], everything, slides=slides, tiles=ATLAS_TILES, seed=seed)
    folder = run / "pictures"
    rows = [*_heatmap_rows(everything.subset(unseen), models, found, folder), _pca_row(pca.files[0], folder)]
    rows += _atlas_rows(atlas, folder)
    write_atomically(folder / "pictures.json", json.dumps(rows, indent=1).encode())


Row = dict[str, Any]
SHOWN, ATLAS_ROWS, ATLAS_TILES = 2, 3, 8
NAMES = {"plain": "without sparse coding", "sparse_coding": "with sparse coding"}


def _heatmap_rows(test: BagSet, models: dict[str, Path], found: dict[str, Row], folder: Path) -> list[Row]:
    """Some tumours and a normal slide, without and with sparse coding."""
    tumours = [id for id, label in zip(test.ids, test.labels) if label == 1][:SHOWN]
    shown = tumours + [id for id, label in zip(test.ids, test.labels) if label == 0][:1]
    rows: list[Row] = [
        {
            "words": "",
            "half": True,
            "pictures": [
                _copied(model / "maps" / "attention" / f"{id}.png", folder / f"{id}-{name}.png", f"{id}, {NAMES[name]}")
                for name, model in models.items()
            ],
        }
        for id in shown
    ]
    rows[0]["heading"] = "Heatmaps"
    told = "; ".join(f"{NAMES[name]} {_localised(page)}" for name, page in found.items())
    rows[0]["words"] = (
        "Slides that no model saw in training. Colour is attention, by rank within the slide; the painted tumour is outlined "
        f"in red. How well the tiles of tumour are found on the slides that were kept apart: {told}."
    )
    return rows


def _localised(page: Row) -> str:
    froc = page["froc"]["score"] if page.get("froc") else None
    auc = page["tiles"]["auc"] if page.get("tiles") else None
    parts = [
        f"{words} {_value(value):.2f}" for words, value in (("FROC", froc), ("AUC of tiles", auc)) if value is not None
    ]
    return ", ".join(parts) or "not measured"


def _value(number: Any) -> float:
    return float(number["value"] if isinstance(number, dict) else number)


def _pca_row(picture: Path, folder: Path) -> Row:
    words = (
        "The same tiles as the two models see them before they pool: two principal components, coloured by annotation."
    )
    return {
        "heading": "What the models see", "words": words, "wide": True,
        "pictures": [_copied(picture, folder / "pca.png", "PCA of embeddings and of sparse codes")],
    }  # fmt: skip


def _atlas_rows(made: Any, folder: Path) -> list[Row]:
    """The atoms that tell the classes apart best, with the tiles that use them most."""
    rows: list[Row] = []
    for atom in made.atlas.ranked[:ATLAS_ROWS]:
        tiles = [made.out / "tiles" / str(atom.atom) / f"{place}.jpg" for place in range(len(atom.tiles))]
        pictures = [
            _copied(tile, folder / f"atom-{atom.atom}-{place}.jpg", shown.slide)
            for place, (tile, shown) in enumerate(zip(tiles, atom.tiles))
            if tile.is_file()
        ]
        rows.append({"words": atom.sentence, "small": True, "pictures": pictures})
    if rows:
        rows[0]["heading"] = "The atlas of atoms"
        place = os.path.relpath(made.out / "index.html", folder.parent)
        rows[0]["words"] = f"The whole atlas is {place}, from the folder of this report. " + rows[0]["words"]
    return rows


def _copied(source: Path, target: Path, caption: str) -> dict[str, str]:
    write_atomically(target, source.read_bytes())
    return {"file": target.name, "caption": caption}


def label_counts(labels: Path) -> dict[str, int]:
    """How many slides have which label."""
    with labels.open(newline="") as file:
        rows = [row["label"] for row in csv.DictReader(file)]
    return {name: rows.count(name) for name in sorted(set(rows))}
