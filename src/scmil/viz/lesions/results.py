"""Summarise the evaluated slides, compare scores, and write the result files."""

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
from scmil.stats.bootstrap import percentile_interval
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


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """The result of one score on all slides."""

    rule: Rule
    evaluated: Mapping[str, EvaluatedSlide]
    page: Page
    curve: Froc | None

    def froc_draws(self, draws: int, seed: int) -> Numbers:
        """The sensitivities of bootstrap resamples, see `localisation.froc_draws`."""
        return localisation.froc_draws([one.hits for one in self.evaluated.values()], draws, seed)

    def tile_draws(self, draws: int, seed: int) -> Numbers:
        """The metrics of tiles of bootstrap resamples, see `localisation.tile_draws`."""
        each = list(self.evaluated.values())
        tumour, values, units = zip(*((one.tumour, one.values, one.hits.unit) for one in each))
        return localisation.tile_draws(tumour, values, units, draws, seed)


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


def compare_scores(scored: Sequence[ScoreResult], draws: int, seed: int) -> list[Page]:
    """The results of the further scores, with their differences from the first.

    Intervals of differences are those of the same bootstrap resamples of slides for both scores.
    """
    first, *others = scored
    return [
        {
            "rule": rule_page(other.rule, other.evaluated),
            "froc": other.page["froc"],
            "tiles": other.page["tiles"],
            "difference": _score_differences(first, other, draws, seed),
        }
        for other in others
    ]


def _score_differences(first: ScoreResult, other: ScoreResult, draws: int, seed: int) -> Page:
    """The score of FROC, and AUC and average precision of tiles, of the other minus the first."""
    found: Page = {"froc": None}
    if first.curve is not None and other.curve is not None:
        pair = (one.froc_draws(draws, seed).mean(1) for one in (other, first))
        found["froc"] = _paired_difference(other.curve.score - first.curve.score, *pair)
    one, two = (each.tile_draws(draws, seed) for each in (other, first))
    for place, name in enumerate(("auc", "ap")):
        known = None not in (values := [each.page["tiles"][name] for each in (other, first)])
        value = values[0] - values[1] if known else math.nan
        found[name] = _paired_difference(value, one[place], two[place])
    return found


def _paired_difference(value: float, one: Numbers, two: Numbers) -> Page:
    interval = list(percentile_interval(one - two))
    return dict(_json_ready({"value": value, "interval": interval}))


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


def rule_page(rule: Rule, evaluated: Mapping[str, EvaluatedSlide]) -> Page:
    """The detection rule as it was used."""
    return {**asdict(rule), "floor": rule.floor, "radius_um": _used_radii(evaluated, rule)}


def _used_radii(evaluated: Mapping[str, EvaluatedSlide], rule: Rule) -> float | list[float] | None:
    """The radius that was used, or the smallest and the largest if tile sizes differ."""
    if rule.kind != "peaks":
        return None
    used = [round(rule.radius_of(one.tile_um), 2) for one in evaluated.values()]
    return used[0] if min(used) == max(used) else [min(used), max(used)]


def list_warnings(
    evaluated: Mapping[str, EvaluatedSlide],
    unknown: Mapping[str, str],
    known: Mapping[str, Known],
    rules: Sequence[Rule],
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
    rule = rules[0]  # the others have other scores, and the same rule otherwise
    if any(each.score == "attention" for each in rules):
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


def write_results(outputs: Outputs, page: Page, scored: Sequence[ScoreResult]) -> None:
    """Write the files, and remove files of an earlier call that are not written again."""
    new = set()
    # All files are checked before the first one is written.
    for path, content in _result_files(outputs.folder, page, scored):
        outputs.check(path, content=content)
        new.add(path)
    # Of slides and scores that only an earlier call evaluated.
    for old in [path for path in outputs.written() if path not in new]:
        outputs.remove(old)
    for path, content in _result_files(outputs.folder, page, scored):
        outputs.write(path, content)


def _result_files(
    out: Path, page: Page, scored: Sequence[ScoreResult]
) -> Iterator[tuple[Path, bytes]]:
    from scmil.report.lesion_page import lesion_page

    for place, one in enumerate(scored):
        yield from _score_files(out / safe_name(one.rule.score) if place else out, one)
    picture = _froc_svg(page, scored)
    if picture is not None:
        yield out / "froc.svg", encode_utf8(picture)
    yield out / "report.html", encode_utf8(lesion_page(page, picture))
    yield out / "result.json", (json.dumps(page, indent=1, allow_nan=False) + "\n").encode()


def _score_files(folder: Path, one: ScoreResult) -> Iterator[tuple[Path, bytes]]:
    """The detections and the curve of one score."""
    for slide_id, slide in one.evaluated.items():
        found = slide.detections
        rows = zip(found.probability.tolist(), *found.xy.T.tolist(), strict=True)
        yield (
            folder / "detections" / f"{safe_name(slide_id)}.csv",
            csv_bytes([f"{p:.7g}", x, y] for p, x, y in rows),
        )
    if (curve := one.curve) is not None:
        columns = zip(curve.thresholds, curve.false_positives, curve.sensitivity, strict=True)
        header = ["threshold", "false_positives_per_slide", "sensitivity"]
        yield (
            folder / "froc.csv",
            csv_bytes([header, *([f"{value:.7g}" for value in row] for row in columns)]),
        )


def _froc_svg(page: Page, scored: Sequence[ScoreResult]) -> str | None:
    """The curves of all scores in one picture; None without lesions."""
    from scmil.report.froc_curve import FrocLine, froc_picture

    lines = [
        FrocLine(
            one.curve.false_positives,
            one.curve.sensitivity,
            one.page["froc"]["points"],
            f"{one.rule.score} ({one.page['froc']['score']:.2f})",
        )
        for one in scored
        if one.curve is not None
    ]
    if not lines:
        return None
    numbers = page["froc"]
    counted = f"{page['model']}: {numbers['lesions']} lesions in {page['slides']} slides"
    if len(lines) > 1:
        words = [f"{counted}; FROC scores in brackets", describe_rule(page).partition("; ")[2]]
        return froc_picture(lines, f"FROC of {len(lines)} scores", words)
    low, high = (f"{value:.2f}" for value in numbers["interval"])
    title = f"FROC score {numbers['score']:.2f} ({low} to {high})"
    words = [f"{counted}; the band is the 95 % interval", describe_rule(page)]
    return froc_picture(lines, title, words)


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
