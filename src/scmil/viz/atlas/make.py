"""Write the atlas of a model as a folder: a page, a table, crops of tiles, detections for QuPath,
and JSON for the viewer.

    atlas/index.html              the page; it needs only the files in this folder
    atlas/atlas.csv               one row per atom
    atlas/atlas.json              the same as JSON, see below
    atlas/evidence.csv            contribution of each atom to each logit, one row per slide and
                                  class; only if the scores have evidence
    atlas/tiles/<atom>/<k>.jpg    the tiles that use an atom most, k from 0
    atlas/qupath/<slide>.geojson  one detection per tile, classified by its strongest atom

`atlas.json` has `format`, `model`, `classes`, `slides`, `tiles`, `compared` (number of patients per
class), `held_out` (whether only slides outside of training and validation were compared), `ranked`
(numbers of the atoms in the order of the page), and `atoms`, by number, each with

    atom, sign              its number, and the sign "+" or "−" of the codes described below
    used, opposite          fraction of all tiles that use it with this sign, and with the other one
    strength                mean |code| of the tiles that use it
    by_class                {class: mean over patients of the fraction of tiles that use it}
    use_by_class            {class: fraction of its uses in slides of the class}
    compared                the class that is compared with all others
    difference, low, high   of the fractions, with its 95 % confidence interval; null without labels
    p                       corrected for all atoms and signs; null without labels
    attention               mean attention ratio of the tiles that use it, weighted by |code|
    evidence                {class: [mean, low, high]}: its contribution to the logit with this
                            sign, mean over patients with its 95 % interval; empty without evidence
    evidence_opposite       {class: mean} with the other sign
    together                up to three numbers of atoms that the same tiles use
    together_signs          their signs
    dead, duplicate_of      whether no tile uses it; the atom that it duplicates, or null
    sentence                all of this as a sentence
    tiles                   [{slide, x, y, side, code, file}] in level-0 pixels; file is null if the
                            slide could not be read
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scmil.core.jobs.failure_log import FailureLog, record_failure
from scmil.core.jobs.locks import safe_name
from scmil.core.outputs import Outputs
from scmil.core.tables import csv_bytes
from scmil.core.text import encode_utf8
from scmil.errors import DataError, OptionError
from scmil.models.evidence import has_exact_evidence
from scmil.studies import load_trained_model, score_folder
from scmil.viz.atlas.atom import SIGNS, Atlas, Atom
from scmil.viz.atlas.counts import build_atlas
from scmil.viz.atlas.crops import Progress, cut_crops, delete_stale_crops
from scmil.viz.atlas.evidence import evidence_table
from scmil.viz.atlas.page import EVIDENCE_FILE, atlas_page
from scmil.viz.atlas.qupath import atoms_geojson

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.score_files import ScoreSet
    from scmil.models.tile_scores import Scores

FORMAT = "scmil-atlas-1"
STAGE = "atlas"
PAGES = ("atlas.csv", "index.html", "atlas.json")
# Fields of an atom that are written as they are.
USE = ("atom", "sign", "used", "opposite", "strength")
COMPARISON = ("compared", "difference", "low", "high", "p")
SIZE_PX = 256  # of a crop, if the size of the tiles is not recorded with the model


@dataclass(frozen=True)
class Made:
    """The folder of an atlas, its contents, and the slides that failed with their causes."""

    out: Path
    atlas: Atlas
    failed: dict[str, str]


def make_atlas(
    model: str | Path,
    bags: BagSet,
    out: str | Path | None = None,
    *,
    slides: str | Path | None = None,
    tiles: int = 10,
    per_slide: int = 3,
    held_out: bool = False,
    evidence: bool = False,
    seed: int = 0,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Create the atlas of a model over a cohort, by default in `maps/atlas` of the model's folder.

    Slides without tile scores are scored first. Classes are compared by the labels of `bags`; with
    `held_out`, only on slides outside of the training and validation splits of the model. Tiles are
    cropped from the slides in the folder `slides`; without it there are no pictures. Slides that
    fail are logged in `failures.csv` and skipped. The contributions of the atoms to the logits are
    shown if they are exact, or with `evidence` from integrated gradients. Files in `out` that were
    not written by this function are rejected, unless `overwrite`.
    """
    network, study = load_trained_model(model)
    dictionary = getattr(network.refine, "dictionary", None)
    if dictionary is None:
        raise OptionError(
            f"{model} has no sparse coding layer, so there are no atoms. "
            "Train a model with it: scmil train BAGS LABELS --sc"
        )
    out = Path(model) / "maps" / "atlas" if out is None else Path(out)
    sources = None if slides is None else _find_slides_by_id(slides)
    scored = score_folder(
        model,
        bags,
        evidence=evidence or has_exact_evidence(network.aggregate),
        device=device,
        progress=_stage_progress(progress, "scoring", len(bags)),
    )
    scores = _ScoreSubset(scored.scores, [bag_id for bag_id in bags.ids if bag_id in scored.scores])
    seen = {bag_id for part, ids in study["split"].items() if part != "test" for bag_id in ids}
    labels = {
        bag_id: None if held_out and bag_id in seen else label
        for bag_id, label in zip(bags.ids, bags.labels)
    }
    atlas = build_atlas(
        scores,
        dictionary.detach().cpu().numpy(),
        labels=labels,
        patients=dict(zip(bags.ids, bags.patients)),
        tiles=tiles,
        per_slide=per_slide,
        seed=seed,
        progress=_stage_progress(progress, "counting", len(scores)),
    )
    failed = {**scored.failed, **atlas.failed}
    size_px = study["contract"].get("size_px") or SIZE_PX
    outputs = Outputs(out, STAGE, overwrite)
    outputs.check(
        *(out / name for name in (*PAGES, EVIDENCE_FILE)),
        *(_qupath_file(out, bag_id) for bag_id in scores),
    )
    digests = {
        bag_id: slide.get("slide_digest") for bag_id, slide in scored.scores.page["slides"].items()
    }
    files, unread = (
        cut_crops(atlas, sources, digests, outputs, size_px, progress)
        if sources is not None
        else ({}, {})
    )
    failed |= unread | _write_qupath(
        scores, outputs, _stage_progress(progress, "writing for QuPath", len(scores))
    )
    _update_failure_log(out, scores, failed)
    trained = sum(bag_id in seen for bag_id in scores)
    facts = {
        "held_out": held_out,
        "trained": trained,
        "pictures": slides is not None,
        "width_um": _tile_width_um(scores),
    }
    _write_pages(outputs, atlas, files, scored.scores.page, facts)
    delete_stale_crops(out, set(files.values()))  # last: no page shows them any more
    _delete_stale_qupath_files(outputs, scores)
    return Made(out, atlas, failed)


class _ScoreSubset(Mapping[str, "Scores"]):
    """Some slides of a folder of scores, read on access."""

    def __init__(self, scores: ScoreSet, ids: list[str]) -> None:
        self.scores, self.ids = scores, ids

    def __getitem__(self, bag_id: str) -> Scores:
        return self.scores[bag_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def _stage_progress(
    progress: Progress | None, what: str, total: int
) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(what, done, total)


def _update_failure_log(out: Path, scores: Mapping[str, Scores], failed: Mapping[str, str]) -> None:
    """Log the slides that failed, and clear those that no longer fail."""
    failure_log = FailureLog(out)
    before = {failure.slide for failure in failure_log.read() if failure.stage == STAGE}
    for bag_id, cause in failed.items():
        failure_log.add(bag_id, STAGE, cause)
    for bag_id in before.intersection(scores).difference(failed):
        failure_log.clear(bag_id, STAGE)


def _tile_width_um(scores: Mapping[str, Scores]) -> float | None:
    """The width of a tile in microns, if it is the same in the first slides."""
    widths = set()
    for bag_id in list(scores)[:20]:
        try:
            slide = scores[bag_id]
        except DataError:  # logged already
            continue
        widths.add(None if slide.slide_mpp is None else round(slide.side * slide.slide_mpp, 1))
    return widths.pop() if len(widths) == 1 else None


def _find_slides_by_id(slides: str | Path) -> dict[str, Path]:
    from scmil.bags.slide_ids import slide_id
    from scmil.encoding.cohort import find_cohort

    return {slide_id(source.id): source.path for source in find_cohort(slides)}


def _qupath_file(out: Path, bag_id: str) -> Path:
    return out / "qupath" / f"{safe_name(bag_id)}.geojson"


def _delete_stale_qupath_files(outputs: Outputs, current: Iterable[str]) -> None:
    """Delete the files of slides that the atlas no longer has."""
    expected = {_qupath_file(outputs.folder, slide_id) for slide_id in current}
    for path in list(outputs.written()):
        if path.parent.name == "qupath" and path not in expected:
            outputs.remove(path)


def _write_qupath(
    scores: Mapping[str, Scores], outputs: Outputs, progress: Callable[[int], None] | None
) -> dict[str, str]:
    failed: dict[str, str] = {}
    for done, bag_id in enumerate(scores, start=1):
        with record_failure(bag_id, failed):
            outputs.write(_qupath_file(outputs.folder, bag_id), atoms_geojson(scores[bag_id]))
        if progress:
            progress(done)
    return failed


def _write_pages(
    outputs: Outputs,
    atlas: Atlas,
    files: Mapping[tuple[int, int], str],
    about: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> None:
    rows = [_atom_record(atom, files) for atom in atlas.atoms]
    page = {
        "format": FORMAT,
        "model": about["model"],
        "model_sha256": about["model_sha256"],
        "classes": list(atlas.classes),
        "slides": atlas.slides,
        "tiles": atlas.tiles,
        "compared": dict(atlas.compared),
        "held_out": facts["held_out"],
        "ranked": [atom.atom for atom in atlas.ranked],
        "atoms": rows,
    }
    contents = (
        _atom_table(rows, atlas.classes),
        encode_utf8(atlas_page(atlas, files, about["model"], facts)),
        encode_utf8(json.dumps(page, ensure_ascii=False, allow_nan=False) + "\n"),
    )
    for name, content in zip(PAGES, contents, strict=True):
        outputs.write(outputs.folder / name, content)
    table = outputs.folder / EVIDENCE_FILE
    if atlas.evidence is not None:
        outputs.write(table, evidence_table(atlas.evidence, atlas.classes, SIGNS))
    elif table in list(outputs.written()):
        outputs.remove(table)


def _atom_record(atom: Atom, files: Mapping[tuple[int, int], str]) -> dict[str, Any]:
    """An atom as in `atlas.json`."""
    tiles = [
        {**tile._asdict(), "file": files.get((atom.atom, rank))}
        for rank, tile in enumerate(atom.tiles)
    ]
    return {
        **{name: getattr(atom, name) for name in (*USE, *COMPARISON, "attention")},
        "by_class": dict(atom.by_class),
        "use_by_class": dict(atom.use_by_class),
        "evidence": {name: list(each) for name, each in atom.evidence.items()},
        "evidence_opposite": dict(atom.evidence_opposite),
        "together": [partner.atom for partner in atom.together],
        "together_signs": [partner.sign for partner in atom.together],
        "dead": atom.dead,
        "duplicate_of": atom.duplicate_of,
        "sentence": atom.sentence,
        "tiles": tiles,
    }


def _atom_table(rows: list[dict[str, Any]], classes: tuple[str, ...]) -> bytes:
    plain = (*USE, "attention", *COMPARISON)
    shares = [f"used_{name}" for name in classes] + [f"use_in_{name}" for name in classes]
    shares += [f"evidence_{name}{end}" for name in classes for end in ("", "_low", "_high")]
    table: list[list[Any]] = [[*plain, *shares, "together", "dead", "duplicate_of", "sentence"]]
    for row in rows:
        together = " ".join(
            f"{atom}{sign}" for atom, sign in zip(row["together"], row["together_signs"])
        )
        by_class = [row[key].get(name) for key in ("by_class", "use_by_class") for name in classes]
        for name in classes:
            by_class += row["evidence"].get(name, [None] * 3)
        table.append(
            [
                *(row[name] for name in plain),
                *by_class,
                together,
                int(row["dead"]),
                row["duplicate_of"],
                row["sentence"],
            ]
        )
    return csv_bytes(table)
