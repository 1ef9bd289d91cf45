"""The stage `tile`: find the tissue of slides and cover it with tiles."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scmil.core.atomic import write_atomically
from scmil.core.fingerprint import sha256_of_file
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.locks import check_writable
from scmil.core.jobs.resume import JobOutcome, prepare_targets
from scmil.core.jobs.shards import ALL, Shard
from scmil.core.outputs import check_unclaimed
from scmil.core.safe_hdf5 import opened_h5
from scmil.encoding.dispatch import (
    Dispatch,
    Job,
    OnSlide,
    merge_outcomes,
    reject_slides,
    run_in_processes,
)
from scmil.encoding.identity import record_sources
from scmil.encoding.work_folder import (
    Source,
    TileSettings,
    check_same_settings,
    delete_if_stale,
    tiles_file,
    tissue_file,
)
from scmil.errors import SlideError
from scmil.slides import Slide, find_tissue, open_slide, tile
from scmil.slides.resolution import PLAUSIBLE_RANGE, is_plausible


def tile_slides(
    sources: Sequence[Source],
    work: str | Path,
    settings: TileSettings | None = None,
    *,
    retry_failed: bool = False,
    jobs: int = 1,
    shard: Shard = ALL,
    dispatch: Dispatch | None = None,
    on_slide: OnSlide | None = None,
) -> JobOutcome:
    """Find the tissue of slides and write their tiles into a work folder.

    Slides that fail are written to the failure log, and the others are processed. Slides that have
    tiles are kept.

    Args:
        sources: The slides, see `find_cohort`. All of them are listed in slides.csv.
        work: The work folder; it is created if necessary.
        settings: How slides are tiled, the same for all slides of the folder.
        retry_failed: Whether slides of the failure log are tried again.
        jobs: Number of processes.
        shard: The part of the slides that is tiled by this call.
        dispatch: Runs the job elsewhere, for example on a cluster, instead of `jobs` processes.
        on_slide: Called with the name of each slide and its state: "done", "kept", "failed", or
            "taken" if another process has locked it.

    Returns:
        The names of the slides by state.

    Raises:
        OptionError: If the folder was started with other settings.
        OutputError: If the folder cannot be written to, or contains files of other programs.
    """
    work, settings = Path(work), settings or TileSettings()
    check_writable(work)
    check_unclaimed(work, "tiling.json", ["slides.csv", "tiles"], "tile")
    check_same_settings(work / "tiling.json", asdict(settings))
    names = sorted({source.id for source in sources})
    accepted, identities = record_sources(work, sources)
    in_shard = set(shard.of(names))
    own = [source for source in accepted if source.id in in_shard]
    stage = TileStage(work, settings, retry_failed)
    for source in own:
        delete_if_stale(stage.target(source), partial(stage.is_stale, source))
    prepare_targets(own, stage.target, FailureLog(work))
    run = dispatch or partial(run_in_processes, processes=jobs)
    outcome = run(Job(stage, own), on_slide)
    # Slides with the same name, and slides that are another file than the one that was tiled.
    rejected = sorted(in_shard - {source.id for source in accepted})
    unknown = [name for name in identities.unknown if name in in_shard]
    return merge_outcomes([outcome, reject_slides(rejected, on_slide, unknown)])


@dataclass(frozen=True)
class TileStage:
    """Makes the tiles of a slide, with its tissue outlines and a preview image."""

    work: Path
    settings: TileSettings
    retry_failed: bool = False
    name: str = "tile"

    def prepare(self) -> None:
        """Nothing is shared between slides."""

    def target(self, source: Source) -> Path:
        """The file of the tiles."""
        return tiles_file(self.work, source.id)

    def is_stale(self, source: Source) -> bool:
        """Whether the outlines or the microns per pixel changed after tiling."""
        tiles, outlines = self.target(source), tissue_file(self.work, source.id)
        if not (tiles.is_file() and outlines.is_file()):
            return False
        try:
            with opened_h5(tiles) as file:
                attributes = dict(file["coords"].attrs)
            digest = json.loads(attributes["tissue"]).get("sha256")
            mpp, stated = _read_mpp(attributes)
        except (OSError, KeyError, ValueError):
            return True  # damaged
        return digest != sha256_of_file(outlines) or _has_other_mpp(source, mpp, stated)

    def make(self, source: Source) -> None:
        """Write outlines, preview and tiles of a slide; outlines that exist are used."""
        from scmil.slides.annotations.geojson import tissue_from_geojson, write_geojson
        from scmil.slides.preview import draw_tiling
        from scmil.slides.tile_files import write_tiling

        settings, outlines = self.settings, tissue_file(self.work, source.id)
        with source.open() as slide:
            if is_new := not outlines.is_file():
                found = find_tissue(slide, settings.preset, otsu=settings.otsu, pen=settings.pen)
                if found.area.is_empty:
                    _check_plausible(slide, "no tissue was found")
                    raise SlideError(_explain_no_tissue(slide, settings, outlines))
                write_geojson(found, outlines, slide.digest)
            # Outlines that were just written are read as well, so that there is only one path.
            tissue = tissue_from_geojson(outlines, slide)
            tiling = tile(slide, tissue, **settings.tile_options())
            if not len(tiling):
                area = f"{tissue.area_mm2(slide.mpp):.2g} mm²"
                if is_new and not is_plausible(slide.mpp):
                    outlines.unlink()  # found at a wrong scale
                _check_plausible(slide, f"the tissue has {area} and contains no tile")
                raise SlideError(
                    f"the tissue ({area}) contains no tile of "
                    f"{settings.size_px} px at {settings.mpp:g} µm per pixel with at least "
                    f"{settings.min_tissue:.0%} tissue. Use smaller tiles, or a smaller "
                    "--min-tissue."
                )
            preview = io.BytesIO()
            draw_tiling(slide, tissue, tiling).save(preview, "JPEG", quality=88)
            write_atomically(self.target(source).with_suffix(".jpg"), preview.getvalue())
            stated = None if source.mpp is None else slide.stated_mpp or 0
            # Last: it marks the slide as done.
            write_tiling(tiling, tissue, self.target(source), stated)


def _explain_no_tissue(slide: Slide, settings: TileSettings, outlines: Path) -> str:
    """Why a slide has no tissue, and what to do: some stains have the colours of marker ink."""
    draw = f"draw the tissue in QuPath, save it as {outlines}, and add --retry-failed."
    everything = find_tissue(slide, settings.preset, otsu=settings.otsu, pen=False)
    if settings.pen and not everything.area.is_empty:
        return (
            f"the colours of all tissue ({everything.fraction:.0%} of the slide) are those of "
            f"marker ink. If nothing is marked, use --no-pen in a new folder; otherwise {draw}"
        )
    return (
        f"no tissue was found with the preset {settings.preset!r}. Use another preset in a new "
        f"folder ('biopsy' for small pieces, 'otsu' for pale stains), or {draw}"
    )


def resolution_notes(work: str | Path, sources: Sequence[Source]) -> list[str]:
    """One line for each tiled slide whose stated and given microns per pixel differ.

    The line says which of the two values the tiles were made with.
    """
    notes = []
    for source in sources:
        tiles = tiles_file(work, source.id)
        if source.mpp is None or not tiles.is_file():
            continue
        with suppress(OSError, KeyError, ValueError), opened_h5(tiles) as file:  # damaged
            mpp, stated = _read_mpp(dict(file["coords"].attrs))
            stated = mpp if stated is None else stated
            if stated == 0 or math.isclose(stated, source.mpp, rel_tol=0.01):
                continue
            notes.append(
                f"{source.id}: {mpp:.4g} microns per pixel replace {stated:.4g} of the file"
                if source.override_mpp
                else f"{source.id}: --mpp-of {source.mpp:.4g} is not used, because the file states "
                f"{stated:.4g} microns per pixel. To replace it, add --override-mpp."
            )
    return notes


def _read_mpp(attributes: Mapping[str, Any]) -> tuple[float, float | None]:
    """The microns per pixel that tiles were made with, and those of the file if others were given.

    The second number is 0 if the file states none, and None if no microns per pixel were given, or
    if the tiles are of an earlier version.
    """
    stated = attributes.get("stated_mpp")
    return float(attributes["slide_mpp"]), None if stated is None else float(stated)


def _has_other_mpp(source: Source, mpp: float, stated: float | None) -> bool:
    """Whether a slide would now be opened with other microns per pixel than its tiles have."""
    if stated is None and source.mpp is None:
        return False
    if stated is None and not source.override_mpp:
        try:
            with open_slide(source.path) as slide:
                stated = slide.stated_mpp
        except SlideError:
            return False  # reported when the slide is read
    expected = source.choose_mpp(stated or None)
    return expected is not None and mpp != expected


def _check_plausible(slide: Slide, effect: str) -> None:
    """Raise if the resolution of a slide is implausible and has this effect."""
    if is_plausible(slide.mpp):
        return
    origin = (
        f"{slide.mpp:.4g} microns per pixel were given for the slide"
        if slide.mpp_source == "given"
        else f"the file states {slide.mpp:.4g} microns per pixel"
    )
    raise SlideError(
        f"{origin}, which is implausible: values of scanners lie between {PLAUSIBLE_RANGE}. "
        f"Because of this value, {effect}. Give the correct value: "
        "--mpp-of VALUE --override-mpp --retry-failed"
    )
