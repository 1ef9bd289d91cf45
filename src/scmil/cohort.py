"""A folder of slides becomes a folder of bags, one slide after another, and nothing is lost on the way.

    work/slides.csv               every slide: its name, its file, its microns per pixel if they were given
    work/tissue/<slide>.geojson   outlines; edit them in QuPath, and the next start takes the edited ones
    work/tiles/<slide>.h5, .jpg   the tiles, and a picture to look at
    work/bags/<encoder>/<slide>.h5
    work/failures.csv             what could not be done, and why

A file that is there is done. What was asked for is written beside, so that no folder mixes two kinds of tiles or features.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scmil.bag_files import check_dtype, read_header, write_bag
from scmil.bags import Bag
from scmil.errors import DataError, OptionError, SlideError
from scmil.features import encode, join_scales
from scmil.files import write_atomically
from scmil.labels import read_rows, slide_id
from scmil.slides import Slide, find_slides, find_tissue, open_slide, tile
from scmil.work import Ledger, Outcome, check_writable, for_each, safe_name

if TYPE_CHECKING:
    from scmil.encoders import Encoder
    from scmil.slides.tiling import Tiling

OnSlide = Callable[[str, str], None]  # a slide, and what became of it: done, kept, failed or taken


@dataclass(frozen=True)
class TileSettings:
    """How tissue is found and tiles are laid; the same for all slides of a folder."""

    size_px: int = 256
    mpp: float = 0.5
    overlap_px: int = 0
    min_tissue: float = 0.1
    rule: str = "fraction"
    preset: str = "default"
    otsu: bool | None = None
    pen: bool = True

    def tiles(self) -> dict[str, Any]:
        """The part that `tile` takes."""
        return {key: getattr(self, key) for key in ("size_px", "mpp", "overlap_px", "min_tissue", "rule")}


class Source(NamedTuple):
    """A slide of the cohort: its name, its file, and its microns per pixel where the file does not say them."""

    id: str
    path: Path
    mpp: float | None = None


# --------------------------------------------------------------------------------------------------------- the slides


def find_cohort(slides: str | Path, mpp_of: float | str | Path | None = None) -> list[Source]:
    """The slides below a folder, or one slide; `mpp_of` gives microns per pixel for all, or is a table `slide,mpp`."""
    path = Path(slides)
    found = find_slides(path) if path.is_dir() else [path]
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder.")
    if not found:
        raise DataError(
            f"{path} has no slides: no file below it has the name of a slide (.svs, .tif, .ndpi, .mrxs, …)."
        )
    by_name = read_mpp(mpp_of) if isinstance(mpp_of, (str, Path)) else {}
    same = None if mpp_of is None or isinstance(mpp_of, (str, Path)) else float(mpp_of)
    sources = [Source(_id(one), one.absolute(), same) for one in found]
    if unknown := by_name.keys() - {slide_id(source.id) for source in sources}:
        raise DataError(f"{mpp_of} names {len(unknown)} slides that are not below {path}: {_some(unknown)}.")
    return [source._replace(mpp=by_name.get(slide_id(source.id), source.mpp)) for source in sources]


def _id(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


def read_mpp(path: str | Path) -> dict[str, float]:
    """Microns per pixel of slides, from a table with the columns `slide` (or `wsi`, `slide_id`, …) and `mpp`."""
    table = read_rows(path)
    slide = table.need(("slide", "slide_id", "wsi", "filename"), "slide", "slide")
    mpp = table.need(("mpp",), "microns per pixel", "mpp")
    found: dict[str, float] = {}
    for number, row in table.lines:
        try:
            value = float(row[mpp])
        except ValueError:
            value = float("nan")
        if not 0 < value < float("inf"):
            raise DataError(f"{path}, line {number}: mpp = {row[mpp]!r}, and a number of microns is needed.")
        if found.setdefault(id := slide_id(row[slide]), value) != value:
            raise DataError(
                f"{path}, line {number}: slide {id!r} has {found[id]:g} above and {value:g} here. Keep one."
            )
    return found


def read_sources(work: str | Path) -> list[Source]:
    """The slides of a folder that `tile_slides` has written."""
    path = Path(work) / "slides.csv"
    if not path.is_file():
        raise DataError(
            f"{work} has no slides.csv, so it is no folder of scmil tile. First: scmil tile SLIDES --out {work}"
        )
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return [Source(row["slide"], Path(row["path"]), float(row["mpp"]) if row["mpp"] else None) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no table of slide,path,mpp ({error!r}). Mend it, or tile into a new folder."
        ) from None


def read_settings(work: str | Path) -> TileSettings:
    """How the slides of a folder were tiled."""
    path = Path(work) / "tiling.json"
    try:
        return TileSettings(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} does not say how the slides were tiled ({error}). Tile them into a new folder."
        ) from None


def tiled_slides(work: str | Path, only: Sequence[str] | None = None) -> list[Source]:
    """The slides of a folder that have tiles, or those of them that are named."""
    names = None if only is None else set(only)
    return [s for s in read_sources(work) if tiles_file(work, s.id).is_file() and (names is None or s.id in names)]


def _remember(work: Path, sources: Sequence[Source]) -> list[Source]:
    """Write the slides down, beside those of earlier starts; return those whose names are their own."""
    before = {source.id: source for source in read_sources(work)} if (work / "slides.csv").is_file() else {}
    counts = Counter(source.id for source in sources)
    alone = [source for source in sources if counts[source.id] == 1]
    ledger = Ledger(work)
    for source in sources:
        if counts[source.id] > 1:
            cause = f"{counts[source.id]} slides are named {source.id!r}, {source.path} among them. Rename all but one."
            ledger.add(source.id, "tile", cause, str(source.path))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["slide", "path", "mpp"])
    for source in {**before, **{source.id: source for source in alone}}.values():
        writer.writerow([source.id, source.path, "" if source.mpp is None else source.mpp])
    write_atomically(work / "slides.csv", text.getvalue().encode("utf-8", "surrogateescape"))
    return alone


def _same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write what is asked for, or refuse if the folder was begun with something else."""
    if not path.is_file():
        write_atomically(path, json.dumps(settings, indent=2, sort_keys=True).encode())
        return
    try:
        before = dict(json.loads(path.read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{path} does not say how this folder was begun ({error}). Take another folder.") from None
    if differing := [key for key in sorted({*before, *settings}) if before.get(key) != settings.get(key)]:
        said = ", ".join(f"{key} = {before.get(key)!r} before, {settings.get(key)!r} now" for key in differing)
        raise OptionError(
            f"{path.parent} was begun with other settings: {said}. Take another folder, or the same settings."
        )


# ----------------------------------------------------------------------------------------------------------- the tiles


def tile_slides(
    sources: Sequence[Source],
    work: str | Path,
    settings: TileSettings | None = None,
    *,
    retry_failed: bool = False,
    jobs: int = 1,
    on_slide: OnSlide | None = None,
) -> Outcome:
    """Find the tissue of every slide and lay its tiles; `jobs` slides at the same time."""
    work, settings = Path(work), settings or TileSettings()
    check_writable(work)
    _same_settings(work / "tiling.json", asdict(settings))
    alone = _remember(work, sources)
    _forget_edited(work, alone)
    run = partial(_tile_some, work=work, settings=settings, retry_failed=retry_failed)
    outcome = _in_processes(run, alone, jobs, on_slide)
    doubled = sorted({source.id for source in sources} - {source.id for source in alone})
    for name in doubled if on_slide else ():
        on_slide(name, "failed")  # type: ignore[misc]
    return _joined([outcome, Outcome(failed=tuple(doubled))])


def _tile_some(
    sources: Sequence[Source], on_slide: OnSlide | None, work: Path, settings: TileSettings, retry_failed: bool
) -> Outcome:
    return for_each(
        sources,
        lambda source: _tile_one(source, work, settings),
        target=lambda source: tiles_file(work, source.id),
        ledger=Ledger(work),
        stage="tile",
        retry_failed=retry_failed,
        name=lambda source: source.id,
        source=lambda source: source.path,
        on_done=(lambda source, state: on_slide(source.id, state)) if on_slide else None,
    )


def tiles_file(work: str | Path, id: str) -> Path:
    """Where the tiles of a slide are."""
    return Path(work) / "tiles" / f"{safe_name(id)}.h5"


def tissue_file(work: str | Path, id: str) -> Path:
    """Where the outline of a slide's tissue is."""
    return Path(work) / "tissue" / f"{safe_name(id)}.geojson"


def _tile_one(source: Source, work: Path, settings: TileSettings) -> None:
    from scmil.slides.geojson import tissue_from_geojson, write_geojson
    from scmil.slides.picture import draw_tiling
    from scmil.slides.tiling import write_tiling

    outline, target = tissue_file(work, source.id), tiles_file(work, source.id)
    with _opened(source) as slide:
        if not outline.is_file():
            found = find_tissue(slide, settings.preset, otsu=settings.otsu, pen=settings.pen)
            if found.area.is_empty:
                raise SlideError(
                    f"no tissue was found with the preset {settings.preset!r}. Try 'biopsy' for small pieces, 'otsu' for "
                    f"pale stains, in a new folder, or draw it in QuPath, save it as {outline}, and add --retry-failed."
                )
            write_geojson(found, outline)
        tissue = tissue_from_geojson(outline, slide)  # also what was just written: one way, whoever drew it
        tiling = tile(slide, tissue, **settings.tiles())
        if not len(tiling):
            raise SlideError(
                f"the tissue ({tissue.area_mm2(slide.mpp):.2g} mm²) has no tile of {settings.size_px} px at {settings.mpp:g} "
                f"µm with {settings.min_tissue:.0%} tissue. Take smaller tiles, or less --min-tissue."
            )
        picture = io.BytesIO()
        draw_tiling(slide, tissue, tiling).save(picture, "JPEG", quality=88)
        write_atomically(target.with_suffix(".jpg"), picture.getvalue())
        write_tiling(tiling, tissue, target)  # the last: with it the slide is done


def _opened(source: Source) -> Slide:
    slide = open_slide(source.path, mpp=source.mpp)
    slide.id = source.id
    return slide


def _forget_edited(work: Path, sources: Sequence[Source]) -> None:
    """Remove tiles whose outline was edited since, or whose slide is now given other microns, so that they are laid anew."""
    import h5py

    for source in sources:
        tiles, outline = tiles_file(work, source.id), tissue_file(work, source.id)
        if not (tiles.is_file() and outline.is_file()):
            continue
        try:
            with h5py.File(tiles, "r") as file:
                said = dict(file["coords"].attrs)
            before = json.loads(said["tissue"]).get("sha256"), float(said["slide_mpp"])
        except (OSError, KeyError, ValueError):
            before = None, 0.0  # damaged: laid anew
        if before != (_digest(outline), source.mpp or before[1]):
            tiles.unlink()


# -------------------------------------------------------------------------------------------------------- the features


def encode_slides(
    work: str | Path,
    encoder: Encoder,
    *,
    only: Sequence[str] | None = None,
    scales: int = 1,
    dtype: str = "float16",
    batch: int | None = None,
    workers: int = 1,
    retry_failed: bool = False,
    on_slide: OnSlide | None = None,
    on_tiles: Callable[[str, int, int], None] | None = None,
) -> Outcome:
    """Encode the tiles of every slide of a folder into `work/bags/<encoder>/`; `scales=2` adds each tile's parent.

    `on_tiles` is told the slide, how many of its tiles are done, and how many it has.
    """
    work = Path(work)
    if scales not in (1, 2):
        raise OptionError(f"scales = {scales}: 1, or 2 for each tile beside its parent, is needed.")
    check_dtype(dtype)
    tiled = tiled_slides(work, only)  # before anything is written: the folder may be no work folder
    folder = bags_folder(work, encoder.name, scales)
    check_writable(folder)
    asked = {"encoder": encoder.name, "encoder_digest": encoder.digest, "scales": scales, "dtype": dtype}
    _same_settings(folder / "encoder.json", asked)
    _forget_older(work, folder, tiled)

    def make(source: Source) -> None:
        from scmil.slides.tiling import read_tiling

        tiling = read_tiling(tiles_file(work, source.id))
        with _opened(source) as slide:
            _check_unchanged(slide, tiling, (tiles_file(work, source.id), tissue_file(work, source.id)))
            bag = _encoded(slide, tiling, encoder, scales, batch, workers, dtype, on_tiles)
        digest = {"tiles_digest": _digest(tiles_file(work, source.id))}
        bag = Bag(bag.id, bag.features, xy=bag.xy, provenance={**bag.provenance, **digest})
        write_bag(bag, folder / f"{safe_name(source.id)}.h5", dtype)

    return for_each(
        tiled,
        make,
        target=lambda source: folder / f"{safe_name(source.id)}.h5",
        ledger=Ledger(work),
        stage=f"encode {folder.name}",
        retry_failed=retry_failed,
        name=lambda source: source.id,
        source=lambda source: source.path,
        on_done=(lambda source, state: on_slide(source.id, state)) if on_slide else None,
    )


def bags_folder(work: str | Path, encoder: str, scales: int = 1) -> Path:
    """Where the bags of an encoder are."""
    return Path(work) / "bags" / (safe_name(encoder) + ("-two-scales" if scales == 2 else ""))


def _encoded(
    slide: Slide,
    tiling: Tiling,
    encoder: Encoder,
    scales: int,
    batch: int | None,
    workers: int,
    dtype: str,
    on_tiles: Callable[[str, int, int], None] | None,
) -> Bag:
    total = len(tiling) + (len(tiling.parents()[0]) if scales == 2 else 0)
    progress = (lambda done: on_tiles(slide.id, done, total)) if on_tiles else None
    verb = join_scales if scales == 2 else encode
    return verb(slide, tiling, encoder, batch=batch, workers=workers, dtype=dtype, progress=progress)


def _check_unchanged(slide: Slide, tiling: Tiling, files: Sequence[Path]) -> None:
    """Refuse a slide whose tiles were laid on other pixels, or on pixels of another width."""
    (width, height), (old_width, old_height) = slide.size, tiling.slide_size
    if slide.size != tiling.slide_size:
        said = f"has {width} x {height} pixels, but {old_width} x {old_height} when it was tiled"
    elif not math.isclose(slide.mpp, tiling.slide_mpp, rel_tol=1e-6):
        said = f"has {slide.mpp:g} microns per pixel, but {tiling.slide_mpp:g} when it was tiled"
    else:
        return
    raise SlideError(f"{slide.path} {said}. Delete {' and '.join(map(str, files))}, and tile it again.")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _forget_older(work: Path, folder: Path, sources: Sequence[Source]) -> None:
    """Remove bags whose tiles were laid anew since."""
    for source in sources:
        bag = folder / f"{safe_name(source.id)}.h5"
        if bag.is_file():
            try:
                before = read_header(bag).provenance.get("tiles_digest")
            except DataError:
                before = None  # damaged: encoded again
            if before != _digest(tiles_file(work, source.id)):
                bag.unlink()


# ----------------------------------------------------------------------------------------------------------- processes


def _in_processes(
    run: Callable[[Sequence[Source], OnSlide | None], Outcome],
    sources: Sequence[Source],
    jobs: int,
    on_slide: OnSlide | None,
) -> Outcome:
    """Deal the slides to processes; each takes the next slide when it has finished one."""
    if jobs <= 1 or len(sources) <= 1:
        return run(sources, on_slide)
    outcomes = []
    with ProcessPoolExecutor(min(jobs, len(sources)), mp_context=get_context("spawn")) as pool:
        for source, outcome in zip(sources, pool.map(_alone, [(run, source) for source in sources]), strict=True):
            outcomes.append(outcome)
            if on_slide:
                state = next(s for s in ("done", "kept", "failed", "taken") if source.id in getattr(outcome, s))
                on_slide(source.id, state)
    return _joined(outcomes)


def _alone(task: tuple[Callable[..., Outcome], Source]) -> Outcome:
    run, source = task
    return run([source], None)


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    names = ("done", "kept", "failed", "taken", "bugs")
    return Outcome(**{name: tuple(one for outcome in outcomes for one in getattr(outcome, name)) for name in names})


def _some(names: set[str]) -> str:
    few = sorted(names)[:3]
    return ", ".join(few) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
