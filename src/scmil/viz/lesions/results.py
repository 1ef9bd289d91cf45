"""Summarise the evaluated slides, and write the result files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scmil.core.jobs.locks import safe_name
from scmil.core.outputs import Outputs
from scmil.core.shapes import Numbers
from scmil.core.tables import csv_bytes
from scmil.core.text import encode_utf8, first_names
from scmil.errors import DataError
from scmil.stats import localisation
from scmil.stats.localisation import FALSE_POSITIVES, Detections, Froc, Hits, Rule
from scmil.viz.lesions.selection import Known

if TYPE_CHECKING:
    from scmil.stats.significance import Interval

Page = dict[str, Any]


@dataclass(frozen=True, eq=False)
class EvaluatedSlide:
    """The evaluation of one slide."""

    detections: Detections
    hits: Hits
    tumour: Any  # (n,) whether a tile is tumour
    values: Numbers
    tile_um: float
    annotation_state: str


def summarise_slides(
    evaluated: Mapping[str, EvaluatedSlide], draws: int, seed: int
) -> tuple[Page, Froc | None]:
    """The numbers over all slides as in `result.json`, and the FROC curve."""
    each = list(evaluated.values())
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
    tiles = localisation.score_tiles(
        [one.tumour for one in each], [one.values for one in each], units, draws, seed
    )
    if not 0 < tiles.tumour_tiles < tiles.tiles:
        warnings.append(
            f"{tiles.tumour_tiles} of {tiles.tiles} tiles are tumour: tiles have no AUC."
        )
    page: Page = {
        "slides": len(each),
        "slides_with_lesions": sum(bool(len(one.lesions) or one.isolated) for one in hits),
        "patients": len(set(filter(None, units))) or None,
        "froc": of_froc,
        "tiles": _json_ready(asdict(tiles)),
        "warnings": warnings,
        "each": {slide_id: _slide_page(one) for slide_id, one in evaluated.items()},
    }
    return page, curve


def _froc_page(curve: Froc, score: Interval, each: Sequence[Interval]) -> Page:
    points = [
        {"false_positives": at, "sensitivity": float(value), "interval": list(interval)}
        for at, value, interval in zip(FALSE_POSITIVES, curve.sensitivities, each, strict=True)
    ]
    page = {
        "score": curve.score,
        "interval": list(score),
        "lesions": curve.lesions,
        "isolated": curve.isolated,
    }
    return _json_ready({**page, "points": points})


def _slide_page(one: EvaluatedSlide) -> Page:
    return {
        "truth": one.annotation_state,
        "lesions": len(one.hits.lesions),
        "hit": int((one.hits.lesions > 0).sum()),
        "isolated": one.hits.isolated,
        "detections": len(one.detections.probability),
        "tiles": len(one.values),
        "tumour_tiles": int(one.tumour.sum()),
    }


def _json_ready(value: Any) -> Any:
    """Round to seven digits for JSON; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {key: _json_ready(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_ready(part) for part in value]
    if isinstance(value, float):
        return round(value, 7) if math.isfinite(value) else None
    return value


def used_radii(evaluated: Mapping[str, EvaluatedSlide], rule: Rule) -> float | list[float] | None:
    """The radius that was used, or the smallest and the largest if tile sizes differ."""
    if rule.kind != "peaks":
        return None
    used = [round(rule.radius_of(one.tile_um), 2) for one in evaluated.values()]
    return used[0] if min(used) == max(used) else [min(used), max(used)]


def list_warnings(
    evaluated: Mapping[str, EvaluatedSlide],
    unknown: Mapping[str, str],
    known: Mapping[str, Known],
    rule: Rule,
    seen: Sequence[str],
) -> list[str]:
    """Warnings about the limits of the results."""
    from scmil.bags.datasets.camelyon16 import not_exhaustively_annotated

    partial = [slide_id for slide_id in not_exhaustively_annotated() if slide_id in evaluated]
    drawn = [
        slide_id
        for slide_id, one in evaluated.items()
        if known[slide_id].label == 0 and (len(one.hits.lesions) or one.hits.isolated)
    ]
    learned = sorted(set(evaluated) & set(seen))
    groups = {
        "are excluded, because they have neither an annotation nor the normal class as label": list(
            unknown
        ),
        "are CAMELYON16 slides whose tumours are not exhaustively annotated; exclude them with "
        "--exclude camelyon16": partial,
        "have the normal class as label but lesions in their annotation, which are counted": drawn,
        "were used to train or to select the model, so the results are biased upwards": learned,
    }
    found = [
        f"{len(ids)} of {len(known)} slides {description}: {first_names(ids, 5)}."
        for description, ids in groups.items()
        if ids
    ]
    if rule.score == "attention":
        found.append(
            "Attention sums to one on each slide, so it cannot be compared between slides: use the "
            "score ratio."
        )
    tile_um = min(one.tile_um for one in evaluated.values())
    if rule.kind == "peaks" and rule.radius_um is not None and rule.radius_um < tile_um:
        effect = "a peak suppresses no neighbour, and every tile is a detection"
        found.append(
            f"The radius of {rule.radius_um:g} microns is smaller than a tile of {tile_um:g}: "
            f"{effect}."
        )
    return found


def write_results(
    outputs: Outputs, page: Page, curve: Froc | None, evaluated: Mapping[str, EvaluatedSlide]
) -> None:
    """Write the files, and remove files of an earlier call that are not written again."""
    new = set()
    # All files are checked before the first one is written.
    for path, content in _result_files(outputs.folder, page, curve, evaluated):
        outputs.check(path, content=content)
        new.add(path)
    # Of slides that only an earlier call evaluated.
    for old in [path for path in outputs.written() if path not in new]:
        outputs.remove(old)
    for path, content in _result_files(outputs.folder, page, curve, evaluated):
        outputs.write(path, content)


def _result_files(
    out: Path, page: Page, curve: Froc | None, evaluated: Mapping[str, EvaluatedSlide]
) -> Iterator[tuple[Path, bytes]]:
    for slide_id, one in evaluated.items():
        rows = zip(one.detections.probability.tolist(), *one.detections.xy.T.tolist(), strict=True)
        yield (
            out / "detections" / f"{safe_name(slide_id)}.csv",
            csv_bytes([f"{p:.7g}", x, y] for p, x, y in rows),
        )
    if curve is not None:
        rows = zip(curve.thresholds, curve.false_positives, curve.sensitivity, strict=True)
        header = ["threshold", "false_positives_per_slide", "sensitivity"]
        yield (
            out / "froc.csv",
            csv_bytes([header, *([f"{value:.7g}" for value in row] for row in rows)]),
        )
        yield out / "froc.svg", encode_utf8(_froc_svg(curve, page))
    yield out / "result.json", (json.dumps(page, indent=1, allow_nan=False) + "\n").encode()


def _froc_svg(curve: Froc, page: Page) -> str:
    from scmil.report.froc_curve import froc_picture

    numbers = page["froc"]
    low, high = (f"{value:.2f}" for value in numbers["interval"])
    words = [
        f"{page['model']}: {numbers['lesions']} lesions in {page['slides']} slides; the band is "
        "the 95 % interval",
        describe_rule(page),
    ]
    title = f"FROC score {numbers['score']:.2f} ({low} to {high})"
    return froc_picture(curve.false_positives, curve.sensitivity, numbers["points"], title, words)


def describe_rule(page: Page) -> str:
    """The tile score and the detection rule in one line.

    >>> rule = {"score": "ratio", "kind": "peaks", "radius_um": 192.0, "smooth_um": 0, "floor": 0.0}
    >>> describe_rule({"rule": rule})
    'score: ratio; detections: peaks above 0, radius 192 µm'
    """
    rule = page["rule"]
    radius = rule["radius_um"]
    wide = "–".join(
        f"{part:g}"
        for part in (radius if isinstance(radius, list) else [radius])
        if part is not None
    )
    parts = [f"score: {rule['score']}; detections: {rule['kind']} above {rule['floor']:g}"]
    parts += [f"radius {wide} µm"] * bool(wide) + [f"smoothed by {rule['smooth_um']:g} µm"] * bool(
        rule["smooth_um"]
    )
    return ", ".join(parts)
