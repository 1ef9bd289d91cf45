"""The demo on synthetic slides: tiles, features, models with and without sparse coding, heatmaps,
and a report.

Every stage is the one that users run on real slides: it writes files and reuses existing ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from scmil.bags.bag import BagSet
from scmil.bags.formats import open_bags
from scmil.bags.labels import read_labels
from scmil.core.atomic import write_atomically
from scmil.demo.tasks import TASKS, DemoTask, draw_task_pictures
from scmil.encoding.cohort import TileSettings, bags_folder, encode_slides, find_cohort, tile_slides
from scmil.encoding.encoders import load_encoder
from scmil.errors import DataError
from scmil.stats.significance import LEVEL
from scmil.studies.model_folder import read_page

ENCODER = "efficientnet-lite0"  # its ImageNet weights are a package: nothing is downloaded
SIDE_PX, EPOCHS, RATE = 3000, 40, 2e-4
OnSlide = Callable[[str, str], None]


def make_slides(out: Path, slides: int, seed: int, outcomes: str = "none") -> Path:
    """Generate the slides if they do not exist; return the table of labels, written last."""
    from scmil.slides.synthetic import paint_cohort

    labels = out / "slides" / "labels.csv"
    if not labels.is_file():
        paint_cohort(
            out / "slides",
            slides=slides,
            size=(SIDE_PX, SIDE_PX),
            mpp=0.5,
            seed=seed,
            annotations=True,
            outcomes=outcomes,
        )
    return labels


def make_bags(out: Path, on_slide: OnSlide | None = None) -> Path:
    """Tile and encode every slide; return the folder of the bags."""
    work = out / "work"
    encoder = load_encoder(ENCODER)
    outcomes = [
        tile_slides(find_cohort(out / "slides"), work, TileSettings(), on_slide=on_slide),
        encode_slides(work, encoder, on_slide=on_slide),
    ]
    if failed := [name for outcome in outcomes for name in outcome.failed]:
        raise DataError(
            f"{len(failed)} slides failed: {', '.join(failed)}. The causes are in "
            f"{work / 'failures.csv'}."
        )
    return bags_folder(work, encoder.name)


def slides_config(
    bags: Path, labels: Path, folds: int, repeats: int, seed: int, task: DemoTask = TASKS["class"]
) -> dict[str, Any]:
    """Return the experiment config of the comparison."""
    model = {"aggregator": "abmil-gated", "embed": [128]}
    return {
        "title": "Synthetic slides, from pixels to report",
        "about": f"Synthetic H&E slides, {task.words}. Tiles of 128 microns "
        f"are encoded by {ENCODER} with ImageNet weights. Three methods: ABMIL-Gated without "
        "sparse coding, with sparse coding, and with a linear layer of the same width instead. The "
        "slides are synthetic: the results show that the pipeline works, and have no medical "
        "meaning.",
        "data": {
            "dataset": str(bags),
            "name": "synthetic slides",
            "labels": str(labels),
            **task.data(),
        },
        "protocol": {"folds": folds, "repeats": repeats, "seed": seed, "selection": ["last"]},
        "training": {"recipe": "paper", "epochs": EPOCHS, "learning_rate": RATE},
        "arms": [
            {"name": "ABMIL-Gated", "model": model},
            {
                "name": "ABMIL-Gated + SC",
                "against": "ABMIL-Gated",
                "model": {**model, "sparse_coding": True},
            },
            {
                "name": "ABMIL-Gated + linear",
                "against": "ABMIL-Gated",
                "model": {**model, "refine": "linear"},
            },
        ],
    }


# ---------------------------------------------------------------------------- models and pictures

MODELS = {"plain": False, "sparse_coding": True}  # folder of each model: with sparse coding?


def train_models(
    out: Path, bags: Path, labels: Path, seed: int, task: DemoTask = TASKS["class"]
) -> dict[str, Path]:
    """Train a model without and one with sparse coding on the same slides; return their folders."""
    from scmil import studies as study

    data = study.open_data(
        bags, labels, label=task.label, task=task.options, drop_unlabelled=not task.is_class
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second thread does not help for bags of a hundred tiles
    try:
        for name, sparse in MODELS.items():
            study.train(
                data,
                out / "models" / name,
                sparse_coding=sparse,
                recipe="paper",
                epochs=EPOCHS,
                patience=None,
                valid=0.15,
                test=0.35,
                seed=seed,
            )
    finally:
        torch.set_num_threads(threads)
    return {name: out / "models" / name for name in MODELS}


def draw_pictures(
    out: Path,
    run: Path,
    bags: Path,
    labels: Path,
    models: dict[str, Path],
    seed: int,
    task: DemoTask = TASKS["class"],
) -> None:
    """Draw heatmaps, the PCA figure and the atlas, and add them to the report of the run; for
    another task than classes, heatmaps alone.
    """
    if not task.is_class:
        tested = read_page(models["plain"] / "study.json")["split"]["test"]
        return draw_task_pictures(task, out, run, open_bags(bags).subset(tested), models)
    from scmil.stats.localisation import Rule
    from scmil.viz.atlas import make_atlas
    from scmil.viz.heatmaps import draw_heatmaps
    from scmil.viz.lesions import locate
    from scmil.viz.pca import draw_pca

    all_bags, slides = open_bags(bags, labels=read_labels(labels)), out / "slides"
    test_bags = all_bags.subset(read_page(models["plain"] / "study.json")["split"]["test"])
    localisation = {}
    for name, model in models.items():
        draw_heatmaps(model, test_bags, slides=slides)
        rules = [Rule(score) for score in LOCATED]
        localisation[name] = locate(model, all_bags, slides, rule=rules).page
    pca = draw_pca(list(models.values()), all_bags, out / "pca.png", annotations=slides, seed=seed)
    atlas = make_atlas(
        models["sparse_coding"], all_bags, slides=slides, tiles=ATLAS_TILES, seed=seed
    )
    folder = run / "pictures"
    rows = [
        *_heatmap_rows(test_bags, models, localisation, folder),
        _pca_row(pca.files[0], folder),
        *_atlas_rows(atlas, folder),
    ]
    write_atomically(folder / "pictures.json", json.dumps(rows, indent=1).encode())


Row = dict[str, Any]
SHOWN, ATLAS_ROWS, ATLAS_TILES = 2, 3, 8
LOCATED = ("evidence", "attention", "probability")  # scores that are compared
NAMES = {"plain": "without sparse coding", "sparse_coding": "with sparse coding"}


def _heatmap_rows(
    test_bags: BagSet, models: dict[str, Path], localisation: dict[str, Row], folder: Path
) -> list[Row]:
    """Return rows of heatmaps for some tumour slides and a normal slide, one column per model."""
    tumours = [bag for bag, label in zip(test_bags.ids, test_bags.labels) if label == 1][:SHOWN]
    normal = [bag for bag, label in zip(test_bags.ids, test_bags.labels) if label == 0][:1]
    rows: list[Row] = [
        {
            "words": "",
            "half": True,
            "pictures": [
                _copy_picture(
                    model / "maps" / "attention" / f"{slide_id}.png",
                    folder / f"{slide_id}-{name}.png",
                    f"{slide_id}, {NAMES[name]}",
                )
                for name, model in models.items()
            ],
        }
        for slide_id in tumours + normal
    ]
    rows[0]["heading"] = "Heatmaps"
    scores = "; ".join(
        f"{NAMES[name]}, {_describe_localisation(page)}" for name, page in localisation.items()
    )
    rows[0]["words"] = (
        "Test slides, which were not used in training. The colour is the rank of the attention "
        "within the slide; the annotated tumour is outlined in red. Localisation of tumour tiles "
        f"on the test slides, by tile score: {scores}."
    )
    return rows


def _describe_localisation(page: Row) -> str:
    """Return FROC score and AUC of tiles of every score as text."""
    return ", ".join(_describe_score(found) for found in [page, *page["compared"]])


def _describe_score(found: Row) -> str:
    froc = found["froc"]["score"] if found["froc"] else None
    parts = [
        f"{name} {value:.2f}"
        for name, value in (("FROC score", froc), ("AUC of tiles", found["tiles"]["auc"]))
        if value is not None
    ]
    return f"{found['rule']['score']} ({', '.join(parts) or 'not measured'})"


def _pca_row(picture: Path, folder: Path) -> Row:
    return {
        "heading": "Tile representations",
        "words": "The same tiles as each model represents them before pooling, projected onto two "
        "principal components and coloured by annotation.",
        "wide": True,
        "pictures": [
            _copy_picture(picture, folder / "pca.png", "PCA of embeddings and of sparse codes")
        ],
    }


def _atlas_rows(made: Any, folder: Path) -> list[Row]:
    """Return rows for the atoms that separate the classes best, with the tiles that use them."""
    rows: list[Row] = []
    for atom in made.atlas.ranked[:ATLAS_ROWS]:
        sources = made.out / "tiles" / str(atom.atom)
        pictures = [
            _copy_picture(source, folder / f"atom-{atom.atom}-{index}.jpg", tile.slide)
            for index, tile in enumerate(atom.tiles)
            if (source := sources / f"{index}.jpg").is_file()
        ]
        rows.append({"words": atom.sentence, "small": True, "pictures": pictures})
    if rows:
        rows[0]["heading"] = "Atlas of atoms"
        page = os.path.relpath(made.out / "index.html", folder.parent)
        rows[0]["words"] = (
            "An atom is a column of the dictionary of the sparse coding layer. "
            f"{_describe_difference(made.atlas.ranked[:ATLAS_ROWS])}; all atoms are in {page} "
            f"(relative to this report). {rows[0]['words']}"
        )
    return rows


def _describe_difference(atoms: Sequence[Any]) -> str:
    """How well the atoms of the report separate the classes.

    >>> from scmil.viz.atlas.atom import Atom
    >>> _describe_difference([Atom(1, p=0.01), Atom(2, p=0.2)])
    'These atoms separate the classes best'
    >>> _describe_difference([Atom(1, p=1.0), Atom(2)])
    'The use of these atoms differs most between the classes, but not significantly'
    """
    if any(atom.p is not None and atom.p < LEVEL for atom in atoms):
        return "These atoms separate the classes best"
    return "The use of these atoms differs most between the classes, but not significantly"


def _copy_picture(source: Path, target: Path, caption: str) -> dict[str, str]:
    write_atomically(target, source.read_bytes())
    return {"file": target.name, "caption": caption}
