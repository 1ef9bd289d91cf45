"""How well a model's scores find the lesions of a folder of slides, and what made the number.

A folder of results, by default `maps/locate/` in the folder of the model:

    result.json               all numbers, the rule, every slide, who was left out and why
    froc.csv, froc.svg        the curve
    detections/<slide>.csv    probability, x, y without a header, as CAMELYON16's evaluation reads them
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scmil.stats import localisation
from scmil.errors import DataError, OptionError
from scmil.core.files import csv_bytes, unquoted, utf8
from scmil.stats.localisation import FALSE_POSITIVES, Detections, Froc, Hits, Numbers, Rule
from scmil.outputs import Outputs
from scmil.studies.plan import without_partly_outlined
from scmil.studies import load_study, score_folder
from scmil.core.jobs.work import Ledger, one_of_many, safe_name

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.tile_scores import Scores
    from scmil.stats.significance import Interval

FORMAT, STAGE, EXCLUDED = "scmil-locate-1", "locate", "--exclude"
PARTS = ("unseen", "all", "train", "valid", "test")
Page = dict[str, Any]


class Known(NamedTuple):
    """What is known of a slide beforehand: the number of its class, and its patient."""

    label: int | None
    patient: str | None


@dataclass(frozen=True)
class Located:
    """The folder of the results, what `result.json` says, and the slides that failed with their causes."""

    out: Path
    page: Page
    failed: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Judged:
    """One slide."""

    detections: Detections
    hits: Hits
    tumour: Any  # (n,) which tiles are tumour
    values: Numbers
    tile_um: float
    told: str


def locate(
    model: str | Path,
    bags: BagSet,
    annotations: str | Path,
    out: str | Path | None = None,
    *,
    rule: Rule | None = None,
    labels: str | Path | None = None,
    missing: Sequence[str] | None = None,
    group: str | None = None,
    part: str = "unseen",
    exclude: Iterable[str] = (),
    mpp: float | None = None,
    tile_share: float = 0.5,
    draws: int = 1000,
    seed: int = 0,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Located:
    """Score the tiles of the bags, make detections of the scores, and compare both with outlined lesions.

    `annotations` has `<slide>.xml` (ASAP) or `<slide>.geojson` (QuPath). A slide without one is normal if its label is the
    first class, and is left out otherwise; labels are those of the table `labels` (for `missing` see `read_labels`), of the
    bags or of the model's study.
    `part` says which slides: by default those that the model has neither learned from nor been chosen on. `mpp` takes the
    place of what the slides say; the official evaluation of CAMELYON16 has 0.243 for all. A tile is tumour if `tile_share`
    of its area is. Files of `out` that this did not write are rejected, unless `overwrite`.
    """
    rule, folder = rule or Rule(), Path(annotations)
    _check(folder, tile_share, part, mpp)
    out = Path(model) / "maps" / "locate" if out is None else Path(out)
    _, study = load_study(model)
    known = known_labels(model, bags, study["classes"], labels, missing)
    split = study.get("split") or {}
    chosen, asked = _chosen(bags.ids, split, part), set(without_partly_outlined(exclude))
    left_out = {id: EXCLUDED for id in chosen if id in asked}
    wanted = [id for id in chosen if id not in left_out]
    if not wanted:
        raise DataError(_nothing({}, left_out, out))
    scored = score_folder(model, bags.subset(wanted), device=device, progress=progress)

    def judge(id: str) -> _Judged | str:
        return _judge(scored.scores[id], folder, known[id], rule, group, mpp, tile_share)

    judged, unknown, failed = _judge_all([id for id in wanted if id not in scored.failed], judge, Ledger(out))
    left_out, failed = left_out | unknown, scored.failed | failed
    if not judged:
        raise DataError(_nothing(failed, left_out, out))
    page, curve = _page(judged, draws, seed)
    made = {
        "format": FORMAT, "model": scored.scores.page["model"], "model_sha256": scored.scores.page["model_sha256"],
        "part": part, "rule": {**asdict(rule), "floor": rule.floor, "radius_um": _radii(judged, rule)}, "mpp": mpp,
        "class": group, "tile_share": tile_share, "draws": draws, "seed": seed,
    }  # fmt: skip
    page["warnings"] += _warnings(judged, unknown, known, rule, [] if part == "unseen" else _seen(split))
    page = {**made, **page, "left_out": left_out, "failed": failed}
    _write(Outputs(out, STAGE, overwrite), page, curve, judged)
    return Located(out, page, failed)


# ------------------------------------------------------------------------------------------------------ which slides


def known_labels(
    model: str | Path,
    bags: BagSet,
    classes: Sequence[str],
    table: str | Path | None = None,
    missing: Sequence[str] | None = None,
) -> dict[str, Known]:
    """Class and patient of every bag: from the table, else from the bag, else from what the model was trained with."""
    from scmil.bags.labels import read_labels

    listed = None if table is None else read_labels(table, classes=list(classes), missing=missing)
    of_study = _labels_of_study(Path(model) / "predictions.csv", classes)
    found = {}
    for id, label, patient in zip(bags.ids, bags.labels, bags.patients, strict=True):
        said = [listed.of(id)] if listed else []
        said += [(label, patient), of_study.get(id, (None, None))]
        found[id] = Known(*(next((each[i] for each in said if each[i] is not None), None) for i in (0, 1)))  # type: ignore[arg-type]
    return found


def _labels_of_study(path: Path, classes: Sequence[str]) -> dict[str, tuple[int | None, str | None]]:
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{str(key): unquoted(str(cell or "")) for key, cell in row.items()} for row in csv.DictReader(file)]
    return {
        row["slide_id"]: (classes.index(row["y_true"]) if row["y_true"] in classes else None, row["case_id"] or None)
        for row in rows
    }


def _chosen(ids: Sequence[str], split: Mapping[str, Sequence[str]], part: str) -> list[str]:
    if part == "all":
        return list(ids)
    seen = set(_seen(split))
    chosen = [id for id in ids if (id not in seen if part == "unseen" else id in split.get(part, ()))]
    if not chosen:
        raise DataError(
            f"none of the {len(ids)} slides is of the part {part!r} of the model's split. Take others, or all of them "
            "with --part all; where the model has learned from a slide, its numbers flatter."
        )
    return chosen


def _seen(split: Mapping[str, Sequence[str]]) -> list[str]:
    """What the model has learned from, or was chosen on."""
    return [*split.get("train", ()), *split.get("valid", ())]


def _check(annotations: Path, tile_share: float, part: str, mpp: float | None) -> None:
    if not annotations.is_dir():
        raise DataError(f"{annotations} is no folder of annotations: <slide>.xml of ASAP or <slide>.geojson of QuPath.")
    if not 0 < tile_share <= 1:
        raise OptionError(f"tile_share = {tile_share}: a share of a tile's area above 0 and up to 1 is needed.")
    if part not in PARTS:
        raise OptionError(f"unknown part {part!r}. Known: {', '.join(PARTS)}.")
    if mpp is not None and not 0 < mpp < math.inf:
        raise OptionError(f"mpp = {mpp}: microns per pixel above 0 are needed.")


def _nothing(failed: Mapping[str, str], left_out: Mapping[str, str], out: Path) -> str:
    causes = [*left_out.values(), *failed.values()]
    return (
        f"no slide is left to look at: {len(left_out)} left out and {len(failed)} failed, the first: {causes[0]}. Slides "
        f"need an annotation, or a label that says that they are normal (--labels). Failures are in {out / 'failures.csv'}."
    )


# -------------------------------------------------------------------------------------------------------- one slide


def _judge_all(
    ids: Sequence[str], judge: Callable[[str], _Judged | str], ledger: Ledger
) -> tuple[dict[str, _Judged], dict[str, str], dict[str, str]]:
    """Each slide that can be judged; those whose truth is not known, and those that failed, with the cause."""
    judged, unknown, failed = dict[str, _Judged](), dict[str, str](), dict[str, str]()
    for id in ids:
        with one_of_many(id, failed):  # a score that the model does not have is wrong for every slide, and raised
            found = judge(id)
        if id in failed:
            ledger.add(id, STAGE, failed[id])
            continue
        if ledger.of(id, STAGE):
            ledger.clear(id, STAGE)
        if isinstance(found, str):
            unknown[id] = found
        else:
            judged[id] = found
    return judged, unknown, failed


def _judge(
    scores: Scores, annotations: Path, known: Known, rule: Rule, group: str | None, mpp: float | None, tile_share: float
) -> _Judged | str:
    """What the scores of a slide find; a sentence if the truth is not known."""
    from scmil.slides.annotations.lookup import truth_of

    truth = truth_of(annotations, scores.id, known.label, group)
    if truth.area is None:
        return truth.told
    microns = mpp or scores.slide_mpp
    if microns is None:
        raise DataError(f"slide {scores.id!r} does not say its microns per pixel. Give them: --mpp 0.25")
    values = localisation.tile_values(scores, rule.score)
    detections = localisation.detect(scores.xy, scores.side, values, microns, rule)
    lesions = localisation.find_lesions(truth.area, microns, scores.slide_size)
    if not truth.area.is_empty and not len(lesions.lengths_um):
        raise DataError(
            f"{truth.told}: no outline lies on the slide of {scores.slide_size} pixels. Coordinates must be level-0 pixels."
        )
    hits = localisation.count_hits(detections, lesions, known.patient)
    tumour = localisation.tumour_shares(truth.area, scores.xy, scores.side) >= tile_share
    return _Judged(detections, hits, tumour, values, scores.side * microns, truth.told)


# ------------------------------------------------------------------------------------------------------- all slides


def _page(judged: Mapping[str, _Judged], draws: int, seed: int) -> tuple[Page, Froc | None]:
    each = list(judged.values())
    hits = [one.hits for one in each]
    curve: Froc | None = None
    warnings = []
    of_froc: Page | None = None
    try:
        curve = localisation.froc(hits)
        of_froc = _froc_page(curve, *localisation.froc_intervals(hits, draws, seed))
    except DataError as error:
        warnings.append(f"No FROC: {error}")
    units = [one.hits.unit for one in each]
    tiles = localisation.score_tiles([one.tumour for one in each], [one.values for one in each], units, draws, seed)
    if not 0 < tiles.tumour_tiles < tiles.tiles:
        warnings.append(f"{tiles.tumour_tiles} of {tiles.tiles} tiles are tumour: tiles have no AUC.")
    page: Page = {
        "slides": len(each),
        "slides_with_lesions": sum(bool(len(one.lesions) or one.isolated) for one in hits),
        "patients": len(set(filter(None, units))) or None,
        "froc": of_froc,
        "tiles": _plain(asdict(tiles)),
        "warnings": warnings,
        "each": {id: _slide_page(one) for id, one in judged.items()},
    }
    return page, curve


def _froc_page(curve: Froc, score: Interval, each: Sequence[Interval]) -> Page:
    points = [
        {"false_positives": at, "sensitivity": float(value), "interval": list(interval)}
        for at, value, interval in zip(FALSE_POSITIVES, curve.sensitivities, each, strict=True)
    ]
    page = {"score": curve.score, "interval": list(score), "lesions": curve.lesions, "isolated": curve.isolated}
    return _plain({**page, "points": points})


def _slide_page(one: _Judged) -> Page:
    return {
        "truth": one.told,
        "lesions": len(one.hits.lesions),
        "hit": int((one.hits.lesions > 0).sum()),
        "isolated": one.hits.isolated,
        "detections": len(one.detections.probability),
        "tiles": len(one.values),
        "tumour_tiles": int(one.tumour.sum()),
    }


def _plain(value: Any) -> Any:
    """For JSON: seven digits, and null where there is no number."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return round(value, 7) if math.isfinite(value) else None
    return value


def _radii(judged: Mapping[str, _Judged], rule: Rule) -> float | list[float] | None:
    """The radius that was used, or the smallest and the largest, where the sizes of tiles differ."""
    if rule.kind != "peaks":
        return None
    used = [round(rule.radius_of(one.tile_um), 2) for one in judged.values()]
    return used[0] if min(used) == max(used) else [min(used), max(used)]


def _warnings(
    judged: Mapping[str, _Judged],
    unknown: Mapping[str, str],
    known: Mapping[str, Known],
    rule: Rule,
    seen: Sequence[str],
) -> list[str]:
    from scmil.bags.datasets.camelyon16 import not_exhaustively_annotated

    partial = [id for id in not_exhaustively_annotated() if id in judged]
    drawn = [id for id, one in judged.items() if known[id].label == 0 and (len(one.hits.lesions) or one.hits.isolated)]
    learned = sorted(set(judged) & set(seen))
    told = {
        "are left out, since nobody says where their tumour is, or that there is none": list(unknown),
        "are slides of CAMELYON16 in which not every tumour is outlined: leave them out with --exclude camelyon16": partial,
        "are normal by their label, and have lesions in their annotation, which count": drawn,
        "are slides that the model has learned from or was chosen on, so that the numbers flatter": learned,
    }
    found = [f"{len(ids)} of {len(known)} slides {words}: {_some(ids)}." for words, ids in told.items() if ids]
    if rule.score == "attention":
        found.append("Attention sums to one on each slide, so that slides cannot be compared: take the score ratio.")
    tile_um = min(one.tile_um for one in judged.values())
    if rule.kind == "peaks" and rule.radius_um is not None and rule.radius_um < tile_um:
        words = "a peak silences no neighbour, and every tile is a detection"
        found.append(f"The radius of {rule.radius_um:g} microns is less than a tile of {tile_um:g}: {words}.")
    return found


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")


# -------------------------------------------------------------------------------------------------------------- files


def _write(outputs: Outputs, page: Page, curve: Froc | None, judged: Mapping[str, _Judged]) -> None:
    """Write the files of this call, and remove those that an earlier one wrote and this one does not."""
    new = set()
    for path, content in _files(outputs.folder, page, curve, judged):  # all are looked at before the first is written
        outputs.check(path, content=content)
        new.add(path)
    for old in [path for path in outputs.written() if path not in new]:  # of slides that only an earlier call looked at
        outputs.remove(old)
    for path, content in _files(outputs.folder, page, curve, judged):
        outputs.write(path, content)


def _files(out: Path, page: Page, curve: Froc | None, judged: Mapping[str, _Judged]) -> Iterator[tuple[Path, bytes]]:
    for id, one in judged.items():
        rows = zip(one.detections.probability.tolist(), *one.detections.xy.T.tolist(), strict=True)
        yield out / "detections" / f"{safe_name(id)}.csv", csv_bytes([f"{p:.7g}", x, y] for p, x, y in rows)
    if curve is not None:
        rows = zip(curve.thresholds, curve.false_positives, curve.sensitivity, strict=True)
        header = ["threshold", "false_positives_per_slide", "sensitivity"]
        yield out / "froc.csv", csv_bytes([header, *([f"{value:.7g}" for value in row] for row in rows)])
        yield out / "froc.svg", utf8(_picture(curve, page))
    yield out / "result.json", (json.dumps(page, indent=1, allow_nan=False) + "\n").encode()


def _picture(curve: Froc, page: Page) -> str:
    from scmil.report.froc_curve import froc_picture

    numbers = page["froc"]
    low, high = (f"{value:.2f}" for value in numbers["interval"])
    words = [
        f"{page['model']}: {numbers['lesions']} lesions in {page['slides']} slides; the band is the 95 % interval",
        made_of(page),
    ]
    title = f"FROC score {numbers['score']:.2f} ({low} to {high})"
    return froc_picture(curve.false_positives, curve.sensitivity, numbers["points"], title, words)


def made_of(page: Page) -> str:
    """What made the number, in a line.

    >>> made_of({"rule": {"score": "ratio", "kind": "peaks", "radius_um": 192.0, "smooth_um": 0, "floor": 0.0}})
    'score: ratio; detections: peaks above 0, radius 192 µm'
    """
    rule = page["rule"]
    radius = rule["radius_um"]
    wide = "–".join(f"{part:g}" for part in (radius if isinstance(radius, list) else [radius]) if part is not None)
    parts = [f"score: {rule['score']}; detections: {rule['kind']} above {rule['floor']:g}"]
    parts += [f"radius {wide} µm"] * bool(wide) + [f"smoothed by {rule['smooth_um']:g} µm"] * bool(rule["smooth_um"])
    return ", ".join(parts)
