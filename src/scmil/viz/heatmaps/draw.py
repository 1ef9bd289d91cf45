"""Score every slide of a folder, and draw what is not yet drawn."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from scmil.errors import OptionError
from scmil.core.files import unquoted, utf8
from scmil.viz.heatmaps.index import index_page
from scmil.viz.heatmaps.slide_files import Maps, is_ours
from scmil.viz.heatmaps.sources import Sources
from scmil.bags.labels import slide_id
from scmil.outputs import Outputs
from scmil.viz.drawing.colour_scale import Numbers, scale_for
from scmil.core.jobs.work import Ledger, Outcome, for_each, safe_name

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.tile_scores import ScoreSet

Progress: TypeAlias = Callable[[str, int, int], None]  # what is done, how much of it, of how much
STAGE, INDEX = "heatmap", "index.html"


@dataclass(frozen=True)
class Drawn:
    """What became of the slides: the folder, the outcome, the causes of what failed; the scale, if it is one for all."""

    out: Path
    outcome: Outcome
    failed: dict[str, str]
    scale: str | None


def draw_heatmaps(
    model: str | Path,
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
) -> Drawn:
    """Score every slide and draw its map; by default into `maps/<score>` of the model's folder.

    With `slides`, the maps lie over the slides themselves, and annotations beside these, or in `annotations`, are outlined
    (`<slide>.xml` of ASAP, `<slide>.geojson` of QuPath); without, they lie on a plain ground of the slide's shape. `labels`
    are the classes of slides by name, where bags and model do not know them. What fails goes to `failures.csv`. Files of
    `out` that this did not write are rejected, unless `overwrite`.
    """
    from scmil.studies import score_folder

    out = Path(model) / "maps" / safe_name(score.replace(":", "-")) if out is None else Path(out)
    sources = Sources.of(slides, annotations, out)

    def count(stage: str, done: int) -> None:
        if progress:
            progress(stage, done, len(bags))

    scored = score_folder(model, bags, device=device, progress=lambda done: count("scoring, slides", done))
    good = set(scored.scores).difference(scored.failed)
    ids = [id for id in bags.ids if id in good]
    next(_values(scored.scores, ids, score), None)  # a score that the model does not have is refused here
    same = scale_for(score, _values(scored.scores, ids, score), same=True) if same_scale else None
    maps = Maps(scored.scores, sources, out, score, same, tiff, geojson, *_known(Path(model), bags, labels or {}))
    outputs = Outputs(out, STAGE, overwrite)
    outputs.check(out / INDEX)
    for id in ids:
        outputs.check(*maps.files(id), marked=is_ours)
    for id in ids:
        maps.forget_if_changed(id)
    seen: list[str] = []

    def on_done(id: str, state: str) -> None:
        seen.append(id)
        count("drawing, slides", len(seen))

    ledger = Ledger(out)
    outcome = for_each(
        ids,
        maps.draw,
        target=maps.picture,
        ledger=ledger,
        stage=STAGE,
        retry_failed=True,
        on_done=on_done,
        name=str,
        source=sources.file,
    )
    _enter(ledger, scored.failed, ids)
    failed = {failure.slide: failure.cause for failure in ledger.read() if failure.slide in bags.ids}
    outputs.write(out / INDEX, utf8(index_page(maps, Path(model).resolve().name, failed)))
    return Drawn(out, outcome, failed, same.words if same else None)


def _values(scores: ScoreSet, ids: Sequence[str], score: str) -> Iterator[Numbers]:
    for id in ids:
        try:
            yield scores[id].of(score)
        except OptionError:
            raise
        except Exception:  # whatever a damaged file causes: its slide fails when it is drawn, and is written down there
            continue


def _enter(ledger: Ledger, failed: Mapping[str, str], good: Sequence[str]) -> None:
    """Slides that could not even be scored belong into our ledger, too, and out of it when they can."""
    for failure in [each for each in ledger.read() if each.stage == "score" and each.slide in good]:
        ledger.clear(failure.slide, failure.stage)
    for id, cause in failed.items():
        ledger.add(id, "score", cause)


def _known(model: Path, bags: BagSet, labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The class of each slide by name, as far as somebody knows it, and the part of the study that it was in."""
    path = model / "predictions.csv"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    rows = [
        {str(key): unquoted(str(cell or "")) for key, cell in row.items()} for row in csv.DictReader(io.StringIO(text))
    ]
    names = {row["slide_id"]: row["y_true"] for row in rows if row.get("slide_id") and row.get("y_true")}
    names |= {id: bags.classes[label] for id, label in zip(bags.ids, bags.labels) if label is not None}
    names |= {id: labels[slide_id(id)] for id in bags.ids if slide_id(id) in labels}
    return names, {row["slide_id"]: row["part"] for row in rows if row.get("slide_id") and row.get("part")}
