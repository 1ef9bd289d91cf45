"""Evaluate how well the tile scores of a model detect annotated lesions.

The results are in a folder, by default `maps/locate/` in the folder of the model:

    report.html               all scores side by side, with the FROC curves
    result.json               all numbers, the detection rule, every slide, excluded slides
    froc.csv, froc.svg        the FROC curve
    detections/<slide>.csv    probability, x, y without a header, as in CAMELYON16's evaluation

With several scores, `froc.csv` and `detections/` are those of the first; a further score has them
in a folder of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scmil.core.jobs.failure_log import FailureLog, record_failure
from scmil.core.outputs import Outputs
from scmil.errors import DataError, OptionError
from scmil.stats import localisation
from scmil.stats.localisation import Rule
from scmil.studies import load_trained_model, score_folder
from scmil.studies.from_settings import without_partly_annotated
from scmil.viz.lesions.results import (
    EvaluatedSlide,
    Page,
    ScoreResult,
    compare_scores,
    list_warnings,
    rule_page,
    summarise_slides,
    write_results,
)
from scmil.viz.lesions.selection import (
    Known,
    check_options,
    choose_slides,
    known_labels,
    seen_slides,
)

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.tile_scores import Scores

FORMAT, STAGE, EXCLUDED = "scmil-locate-1", "locate", "--exclude"


@dataclass(frozen=True)
class Located:
    """The folder of the results, the contents of `result.json`, and the slides that failed."""

    out: Path
    page: Page
    failed: dict[str, str]


def locate(
    model: str | Path,
    bags: BagSet,
    annotations: str | Path,
    out: str | Path | None = None,
    *,
    rule: Rule | Sequence[Rule] | None = None,
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
    """Score the tiles of the bags, derive detections, and compare them with annotated lesions.

    `annotations` is a folder with `<slide>.xml` (ASAP) or `<slide>.geojson` (QuPath). A slide
    without an annotation is normal if its label is the first class, and is excluded otherwise.
    Labels are those of the table `labels` (for `missing` see `read_labels`), of the bags, or of the
    training of the model. `part` selects slides by split: by default those outside of the training
    and validation splits. `mpp` replaces the resolution of the slides; the official evaluation of
    CAMELYON16 uses 0.243 for all. A tile is tumour if at least `tile_share` of its area is. Several
    rules, each with another score, are compared on the same slides; the first is the reference.
    Files in `out` that were not written by this function are rejected, unless `overwrite`.
    """
    rules, folder = _list_rules(rule), Path(annotations)
    check_options(folder, tile_share, part, mpp)
    out = Path(model) / "maps" / "locate" if out is None else Path(out)
    _, study = load_trained_model(model)
    known = known_labels(model, bags, study["classes"], labels, missing)
    split = study.get("split") or {}
    chosen, excluded = choose_slides(bags.ids, split, part), set(without_partly_annotated(exclude))
    left_out = {slide_id: EXCLUDED for slide_id in chosen if slide_id in excluded}
    wanted = [slide_id for slide_id in chosen if slide_id not in left_out]
    if not wanted:
        raise DataError(_no_slide_message({}, left_out, out))
    scored = score_folder(
        model,
        bags.subset(wanted),
        evidence=any(localisation.is_evidence(rule.score) for rule in rules),
        device=device,
        progress=progress,
    )

    def evaluate(slide_id: str) -> list[EvaluatedSlide] | str:
        return _evaluate_slide(
            scored.scores[slide_id], folder, known[slide_id], rules, group, mpp, tile_share
        )

    evaluated, unknown, failed = _evaluate_slides(
        [slide_id for slide_id in wanted if slide_id not in scored.failed],
        evaluate,
        FailureLog(out),
    )
    left_out, failed = left_out | unknown, scored.failed | failed
    if not evaluated:
        raise DataError(_no_slide_message(failed, left_out, out))
    results = []
    for place, rule in enumerate(rules):
        by_slide = {slide_id: each[place] for slide_id, each in evaluated.items()}
        results.append(ScoreResult(rule, by_slide, *summarise_slides(by_slide, draws, seed)))
    page, slides = results[0].page, results[0].evaluated
    made = {
        "format": FORMAT,
        "model": scored.scores.page["model"],
        "model_sha256": scored.scores.page["model_sha256"],
        "part": part,
        "rule": rule_page(rules[0], slides),
        "mpp": mpp,
        "class": group,
        "tile_share": tile_share,
        "draws": draws,
        "seed": seed,
    }
    page["warnings"] += list_warnings(
        slides, unknown, known, rules, [] if part == "unseen" else seen_slides(split)
    )
    compared = compare_scores(results, draws, seed)
    page = {**made, **page, "compared": compared, "left_out": left_out, "failed": failed}
    write_results(Outputs(out, STAGE, overwrite), page, results)
    return Located(out, page, failed)


def _list_rules(rule: Rule | Sequence[Rule] | None) -> list[Rule]:
    """The rules, which must have different scores."""
    rules = [rule] if isinstance(rule, Rule) else list(rule or [Rule()])
    names = [each.score for each in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"score {twice!r} is given twice. Give every score once.")
    return rules


def _no_slide_message(failed: Mapping[str, str], left_out: Mapping[str, str], out: Path) -> str:
    causes = [*left_out.values(), *failed.values()]
    return (
        f"no slide can be evaluated: {len(left_out)} excluded and {len(failed)} failed, the first: "
        f"{causes[0]}. Slides need an annotation, or a label of the normal class (--labels). "
        f"Failures are in {out / 'failures.csv'}."
    )


def _evaluate_slides(
    ids: Sequence[str],
    evaluate: Callable[[str], list[EvaluatedSlide] | str],
    failure_log: FailureLog,
) -> tuple[dict[str, list[EvaluatedSlide]], dict[str, str], dict[str, str]]:
    """Evaluate each slide; returns results, slides without ground truth, and failures."""
    evaluated: dict[str, list[EvaluatedSlide]] = {}
    unknown, failed = dict[str, str](), dict[str, str]()
    for slide_id in ids:
        # A score that the model does not have is an error for all slides, and is raised.
        with record_failure(slide_id, failed):
            outcome = evaluate(slide_id)
        if slide_id in failed:
            failure_log.add(slide_id, STAGE, failed[slide_id])
            continue
        if failure_log.of(slide_id, STAGE):
            failure_log.clear(slide_id, STAGE)
        if isinstance(outcome, str):
            unknown[slide_id] = outcome
        else:
            evaluated[slide_id] = outcome
    return evaluated, unknown, failed


def _evaluate_slide(
    scores: Scores,
    annotations: Path,
    known: Known,
    rules: Sequence[Rule],
    group: str | None,
    mpp: float | None,
    tile_share: float,
) -> list[EvaluatedSlide] | str:
    """Evaluate one slide with every rule; returns the reason as text if the ground truth is not
    known.
    """
    from scmil.slides.annotations.lookup import find_ground_truth

    truth = find_ground_truth(annotations, scores.id, known.label, group)
    if truth.area is None:
        return truth.source
    microns = mpp or scores.slide_mpp
    if microns is None:
        raise DataError(
            f"slide {scores.id!r} has no microns per pixel. Specify them, for example: --mpp 0.25"
        )
    every = [localisation.tile_values(scores, rule.score) for rule in rules]
    lesions = localisation.find_lesions(truth.area, microns, scores.slide_size)
    if not truth.area.is_empty and not len(lesions.lengths_um):
        raise DataError(
            f"{truth.source}: no annotated region is inside of the slide of "
            f"{scores.slide_size} pixels. Coordinates must be level-0 pixels; check the file."
        )
    tumour = localisation.tumour_shares(truth.area, scores.xy, scores.side) >= tile_share
    found = []
    for rule, values in zip(rules, every, strict=True):
        detections = localisation.detect_lesions(scores.xy, scores.side, values, microns, rule)
        hits = localisation.count_hits(detections, lesions, known.patient)
        tile_um = scores.side * microns
        found.append(EvaluatedSlide(detections, hits, tumour, values, tile_um, truth.source))
    return found
