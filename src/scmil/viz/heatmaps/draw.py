"""Score every slide of a folder, and draw the sheets that are missing or out of date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from scmil.bags.slide_ids import slide_id
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.locks import safe_name
from scmil.core.jobs.resume import JobOutcome, for_each
from scmil.core.outputs import Outputs
from scmil.core.text import encode_utf8
from scmil.errors import OptionError
from scmil.stats.localisation import is_evidence
from scmil.viz.drawing.colour_scale import Numbers, scale_for
from scmil.viz.heatmaps.index import index_page
from scmil.viz.heatmaps.slide_files import Maps, is_ours
from scmil.viz.heatmaps.sources import Sources

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.score_files import ScoreSet

Progress: TypeAlias = Callable[[str, int, int], None]  # stage, number done, total
STAGE, INDEX = "heatmap", "index.html"


@dataclass(frozen=True)
class DrawnHeatmaps:
    """The folder, the outcome, the causes of failures, and the scale if all slides share one."""

    out: Path
    outcome: JobOutcome
    failed: dict[str, str]
    scale: str | None


def draw_heatmaps(
    model: str | Path | Sequence[str | Path],
    bags: BagSet,
    out: str | Path | None = None,
    *,
    score: str = "attention",
    slides: str | Path | None = None,
    annotations: str | Path | None = None,
    labels: Mapping[str, str] | None = None,
    same_scale: bool = False,
    tiff: bool = False,
    geojson: bool = True,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> DrawnHeatmaps:
    """Score every slide and draw its heatmap, by default in `maps/<score>` of the model's folder.

    With `slides`, heatmaps are drawn over the slides, with annotations from the folder
    `annotations` or from beside the slides (`<slide>.xml` of ASAP, `<slide>.geojson` of QuPath);
    otherwise on a plain background. `labels` are class names by slide id, for bags and models
    without labels. Given several models, such as those of a cross-validation, the heatmaps are
    those of the first, and the standard deviation of the score over all models is a further panel.
    Slides that fail are logged in `failures.csv` and skipped. Files in `out` that
    were not written by this function are rejected, unless `overwrite`.
    """
    from scmil.studies import score_folder

    first, *others = [model] if isinstance(model, str | Path) else model
    model = Path(first)
    out = model / "maps" / safe_name(score.replace(":", "-")) if out is None else Path(out)
    sources = Sources.of(slides, annotations, out)

    def count(stage: str, done: int) -> None:
        if progress:
            progress(stage, done, len(bags))

    every = [
        score_folder(
            each,
            bags,
            evidence=is_evidence(score),
            device=device,
            progress=lambda done: count("scoring, slides", done),
        )
        for each in (model, *others)
    ]
    scored = every[0]
    failed_scoring = {key: cause for each in reversed(every) for key, cause in each.failed.items()}
    good = set(scored.scores).difference(failed_scoring)
    ids = [bag_id for bag_id in bags.ids if bag_id in good]
    # Raises an error if the model does not have this score.
    next(_values(scored.scores, ids, score), None)
    same = scale_for(score, _values(scored.scores, ids, score), same=True) if same_scale else None
    maps = Maps(
        scored.scores,
        sources,
        out,
        score,
        same,
        tiff,
        geojson,
        *_labels_and_splits(model, bags, labels or {}),
        others=[each.scores for each in every[1:]],
    )
    outputs = Outputs(out, STAGE, overwrite)
    outputs.check(out / INDEX)
    for other in maps.others:  # raises an error if a model does not have this score
        next(_values(other, ids, score), None)
    for bag_id in ids:
        outputs.check(*maps.files(bag_id), marked=is_ours)
    for bag_id in ids:
        maps.delete_if_outdated(bag_id)
    seen: list[str] = []

    def on_done(bag_id: str, state: str) -> None:
        seen.append(bag_id)
        count("drawing, slides", len(seen))

    failure_log = FailureLog(out)
    outcome = for_each(
        ids,
        maps.draw,
        target=maps.picture,
        failure_log=failure_log,
        stage=STAGE,
        retry_failed=True,
        on_done=on_done,
        name=str,
        source=sources.file,
    )
    _log_scoring_failures(failure_log, failed_scoring, ids)
    failed = {
        failure.slide: failure.cause for failure in failure_log.read() if failure.slide in bags.ids
    }
    outputs.write(out / INDEX, encode_utf8(index_page(maps, model.resolve().name, failed)))
    return DrawnHeatmaps(out, outcome, failed, same.description if same else None)


def _values(scores: ScoreSet, ids: Sequence[str], score: str) -> Iterator[Numbers]:
    for bag_id in ids:
        try:
            yield scores[bag_id].of(score)
        except OptionError:
            raise
        except Exception:  # a damaged file: its slide fails and is logged when it is drawn
            continue


def _log_scoring_failures(
    failure_log: FailureLog, failed: Mapping[str, str], good: Sequence[str]
) -> None:
    """Copy the failures of scoring to this log, and clear those that no longer fail."""
    for failure in [
        each for each in failure_log.read() if each.stage == "score" and each.slide in good
    ]:
        failure_log.clear(failure.slide, failure.stage)
    for bag_id, cause in failed.items():
        failure_log.add(bag_id, "score", cause)


def _labels_and_splits(
    model: Path, bags: BagSet, labels: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The class name of each slide, if it is known, and the split of the slide in training."""
    from scmil.models.predictions_file import read_training_slides

    slides = read_training_slides(model)
    names = {name: slide.label for name, slide in slides.items() if slide.label}
    names |= {
        bag_id: bags.classes[label]
        for bag_id, label in zip(bags.ids, bags.labels)
        if label is not None
    }
    names |= {bag_id: labels[slide_id(bag_id)] for bag_id in bags.ids if slide_id(bag_id) in labels}
    return names, {name: slide.split for name, slide in slides.items() if slide.split}
