"""A folder of slides becomes a folder of bags, one slide after another, and nothing is lost on the way.

    work/slides.csv               every slide: its name, its file, its microns per pixel if they were given, its times
    work/tissue/<slide>.geojson   outlines; edit them in QuPath, and the next start takes the edited ones
    work/tiles/<slide>.h5, .jpg   the tiles, and a picture to look at
    work/bags/<encoder>/<slide>.h5
    work/failures.csv             what could not be done, and why

A file that is there is done. What was asked for is written beside, so that no folder mixes two kinds of tiles or features.
Tiles and bags record the digest of the slide that they were made from; another file under the same name is rejected.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scmil.bags.hdf5 import check_dtype, read_header, write_bag
from scmil.bags.bag import Bag
from scmil.errors import DataError, OptionError, SlideError
from scmil.encoding.features import encode, join_scales
from scmil.core.files import no_formula, unquoted, write_atomically
from scmil.fingerprint import sha256_of_file, sha256_of_json, stat_of
from scmil.core.safe_io import DAMAGE, opened_h5
from scmil.bags.labels import read_rows, slide_id
from scmil.limits import bounded, check_overlap, read_json
from scmil.outputs import check_unclaimed
from scmil.processes import process_pool
from scmil.core.jobs.shards import ALL, Shard
from scmil.slides import Slide, find_slides, find_tissue, open_slide, slide_digest, slide_files, tile
from scmil.core.jobs.work import Ledger, Outcome, check_writable, for_each, locked, refusing, safe_name, sweep

if TYPE_CHECKING:
    from scmil.encoding.encoders import Encoder
    from scmil.slides.tiling import Tiling

OnSlide = Callable[[str, str], None]  # a slide, and what became of it: done, kept, failed or taken
STATES = ("done", "kept", "failed", "taken")


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
    """A slide of the cohort: its name, its file, its microns per pixel where the file does not say them.

    `times` is a digest of sizes and times of the slide's files when it was last compared with its tiles.
    """

    id: str
    path: Path
    mpp: float | None = None
    times: str | None = None


# --------------------------------------------------------------------------------------------------------- the slides


def find_cohort(slides: str | Path, mpp_of: float | str | Path | None = None) -> list[Source]:
    """The slides below a folder, or one slide; `mpp_of` gives microns per pixel for all, or is a table `slide,mpp`."""
    path = Path(slides)
    found = find_slides(path) if path.is_dir() else [path]
    if not os.path.lexists(path):
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
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            rows = list(csv.DictReader(file))
        if twice := [name for name, count in Counter(row["slide"] for row in rows).items() if count > 1]:
            raise ValueError(f"slide {twice[0]!r} is there twice")
        return [
            Source(
                unquoted(row["slide"]),
                Path(unquoted(row["path"])),
                float(row["mpp"]) if row["mpp"] else None,
                row.get("times") or None,  # tables of earlier versions have no such column
            )
            for row in rows
        ]
    except (AttributeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} is no table of slide,path,mpp ({error!r}). Mend it, or tile into a new folder."
        ) from None


def read_settings(work: str | Path) -> TileSettings:
    """How the slides of a folder were tiled."""
    path = Path(work) / "tiling.json"
    try:
        settings = TileSettings(**read_json(path))
        for key in ("size_px", "mpp", "overlap_px", "min_tissue"):
            bounded(key, getattr(settings, key), "settings")
        check_overlap(settings.size_px, settings.overlap_px, "settings")
        return settings
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} does not say how the slides were tiled ({error}). Tile them into a new folder."
        ) from None


def tiled_slides(work: str | Path, only: Sequence[str] | None = None, shard: Shard = ALL) -> list[Source]:
    """The slides of a folder that have tiles, or those of them that are named; a shard is a part of all, tiled or not."""
    sources = read_sources(work)
    mine = set(shard.of(sorted(only if only is not None else (source.id for source in sources))))
    return [source for source in sources if source.id in mine and tiles_file(work, source.id).is_file()]


def _remember(work: Path, sources: Sequence[Source]) -> tuple[list[Source], Identities]:
    """Write the slides down, beside those of earlier starts; return those whose names are their own, and what was found.

    A slide that is another file than the one that was tiled keeps its line of the table.
    """
    counts = Counter(source.id for source in sources)
    alone = [source for source in sources if counts[source.id] == 1]
    ledger = Ledger(work)
    for source in sources:
        if counts[source.id] > 1:
            cause = f"{counts[source.id]} slides are named {source.id!r}, {source.path} among them. Rename all but one."
            ledger.add(source.id, "tile", cause, str(source.path))
    with refusing(work), locked(work / "slides.csv", wait=True):  # shards begin at the same moment
        before = {source.id: source for source in read_sources(work)} if (work / "slides.csv").is_file() else {}
        found = _compare_with_tiles(work, alone, before)
        present = {source.id: source for source in found.present if source.id not in found.replaced}
        _write_sources(work, {**before, **present}.values())
    return [source for source in alone if source.id not in found.replaced], found


def _write_sources(work: Path, sources: Iterable[Source]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["slide", "path", "mpp", "times"])
    for source in sources:
        mpp = "" if source.mpp is None else source.mpp
        writer.writerow([no_formula(source.id), no_formula(str(source.path)), mpp, source.times or ""])
    write_atomically(work / "slides.csv", text.getvalue().encode("utf-8", "surrogateescape"))


# ------------------------------------------------------------------------------------------------ which slide it was


IDENTITY = "identity"  # the stage of the failure log for slides that are another file than the one that was tiled


class Identities(NamedTuple):
    """Slides with their present times, the causes of those that were replaced, and those that cannot be compared."""

    present: list[Source]
    replaced: dict[str, str]
    unknown: tuple[str, ...] = ()


def _compare_with_tiles(work: Path, sources: Sequence[Source], before: Mapping[str, Source]) -> Identities:
    """Compare each slide that has tiles with the slide that they were made from, by times first and then by digest."""
    found = Identities([], {})
    unknown = []
    for source in sources:
        times, old, tiles = _times(source.path), before.get(source.id), tiles_file(work, source.id)
        now = source._replace(times=times)
        found.present.append(now)
        if times is None or old is None or not tiles.is_file():
            continue  # nothing to compare, or a slide that is not there: its stage reports that, if it needs the slide
        if (old.path, old.times) == (now.path, now.times):
            continue
        try:
            expected = _tiled_digest(tiles)
            if expected is None and old.path == now.path:  # tiles of an earlier version
                unknown.append(source.id)
            elif slide_digest(now.path) != (slide_digest(old.path) if expected is None else expected):
                found.replaced[source.id] = (
                    f"{now.path} is not the file that the tiles and bags of {source.id!r} in {work} were made from. Give "
                    f"this slide another name, or take another folder; to replace the earlier slide, delete {tiles} and "
                    f"{tissue_file(work, source.id)}."
                )
        except SlideError as error:
            found.replaced[source.id] = f"{error} It cannot be compared with the slide that {tiles} was made from."
    _log_replaced(work, sources, found.replaced)
    return found._replace(unknown=tuple(unknown))


def _log_replaced(work: Path, sources: Sequence[Source], replaced: Mapping[str, str]) -> None:
    ledger = Ledger(work)
    known = ledger.among([source.id for source in sources], IDENTITY)
    for source in sources:
        if source.id in replaced:
            ledger.add(source.id, IDENTITY, replaced[source.id], str(source.path))
        elif source.id in known:
            ledger.clear(source.id, IDENTITY)


def _times(path: Path) -> str | None:
    """A digest of sizes and times of a slide's files; None if there are none."""
    try:
        files = slide_files(path)
        return sha256_of_json(stat_of(files))[:16] if files else None
    except OSError:
        return None


def _tiled_digest(tiles: Path) -> str | None:
    """The digest of the slide that tiles were made from, if they record it."""
    try:
        with opened_h5(tiles) as file:
            digest = file["coords"].attrs.get("slide_digest")
    except DAMAGE:
        return None  # damaged: tiled again
    return None if digest is None else str(digest)


def _same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write what is asked for, or refuse if the folder was begun with something else."""
    with (
        refusing(path.parent),
        locked(path, wait=True),
    ):  # of two processes that begin at the same moment, the second is refused too
        if not path.is_file():
            write_atomically(path, json.dumps(settings, indent=2, sort_keys=True).encode())
            return
    try:
        before = dict(read_json(path))
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
    shard: Shard = ALL,
    deal: Deal | None = None,
    on_slide: OnSlide | None = None,
) -> Outcome:
    """Find the tissue of every slide and lay its tiles; `jobs` slides at the same time, or as `deal` deals them out.

    All slides are written down, and those of the `shard` are tiled.
    """
    work, settings = Path(work), settings or TileSettings()
    check_writable(work)
    check_unclaimed(work, "tiling.json", ["slides.csv", "tiles"], "tile")
    _same_settings(work / "tiling.json", asdict(settings))
    everyone = sorted({source.id for source in sources})
    alone, found = _remember(work, sources)
    names, mine = {source.id for source in alone}, set(shard.of(everyone))
    ours = [source for source in alone if source.id in mine]
    _forget_edited(work, ours)
    target = partial(_tiles_of, work)
    sweep(ours, target, Ledger(work))
    run = partial(_tile_some, work=work, settings=settings, retry_failed=retry_failed)
    outcome = (deal or partial(_in_processes, jobs=jobs))(Job(run, ours, target, work, "tile"), on_slide)
    rejected = [name for name in everyone if name in mine and name not in names]  # one name twice, or another file
    return joined([outcome, _rejected(rejected, on_slide, [id for id in found.unknown if id in mine])])


def _rejected(names: Sequence[str], on_slide: OnSlide | None, unknown: Sequence[str]) -> Outcome:
    for name in names if on_slide else ():
        on_slide(name, "failed")  # type: ignore[misc]
    return Outcome(failed=tuple(names), unknown=tuple(unknown))


def _tile_some(
    sources: Sequence[Source], on_slide: OnSlide | None, work: Path, settings: TileSettings, retry_failed: bool
) -> Outcome:
    return for_each(
        sources,
        lambda source: _tile_one(source, work, settings),
        target=partial(_tiles_of, work),
        stage="tile",
        retry_failed=retry_failed,
        **_as_usual(work, on_slide),
    )


def _as_usual(work: Path, on_slide: OnSlide | None) -> dict[str, Any]:
    return {
        "ledger": _ledger(work),
        "name": lambda source: source.id,
        "source": lambda source: source.path,
        "on_done": (lambda source, state: on_slide(source.id, state)) if on_slide else None,
        "swept": True,
    }


@lru_cache(maxsize=8)
def _ledger(work: Path) -> Ledger:
    """Kept from slide to slide, where a process is dealt one at a time: it reads only what is new."""
    return Ledger(work)


def tiles_file(work: str | Path, id: str) -> Path:
    """Where the tiles of a slide are."""
    return Path(work) / "tiles" / f"{safe_name(id)}.h5"


def _tiles_of(work: Path, source: Source) -> Path:
    return tiles_file(work, source.id)


def tissue_file(work: str | Path, id: str) -> Path:
    """Where the outline of a slide's tissue is."""
    return Path(work) / "tissue" / f"{safe_name(id)}.geojson"


def _tile_one(source: Source, work: Path, settings: TileSettings) -> None:
    from scmil.slides.annotations.geojson import tissue_from_geojson, write_geojson
    from scmil.slides.preview import draw_tiling
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
            write_geojson(found, outline, slide.digest)
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
    for source in sources:
        _forget(tiles_file(work, source.id), partial(_is_edited, work, source))


def _is_edited(work: Path, source: Source) -> bool:
    tiles, outline = tiles_file(work, source.id), tissue_file(work, source.id)
    if not (tiles.is_file() and outline.is_file()):
        return False
    try:
        with opened_h5(tiles) as file:
            said = dict(file["coords"].attrs)
        before = json.loads(said["tissue"]).get("sha256"), float(said["slide_mpp"])
    except (OSError, KeyError, ValueError):
        before = None, 0.0  # damaged: laid anew
    return before != (sha256_of_file(outline), source.mpp or before[1])


def _forget(path: Path, is_old: Callable[[], bool]) -> None:
    """Remove a file that is of no use any more, unless another process is just making it anew."""
    if is_old():
        with locked(path, wait=False) as ours:
            if ours and is_old():
                path.unlink()


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
    shard: Shard = ALL,
    deal: Deal | None = None,
    device: str | None = None,
    precision: str = "auto",
    on_slide: OnSlide | None = None,
    on_tiles: Callable[[str, int, int], None] | None = None,
) -> Outcome:
    """Encode the tiles of every slide of a folder into `work/bags/<encoder>/`; `scales=2` adds each tile's parent.

    `on_tiles` is told the slide, how many of its tiles are done, and how many it has. A `shard` is a part of the folder's
    slides. `deal` deals them out to other computers, from where nothing is heard of tiles; there the encoder is brought to a
    `device` ("auto" is a GPU if that computer has one) and a `precision`, and here it is used as it is.
    """
    work = Path(work)
    if scales not in (1, 2):
        raise OptionError(f"scales = {scales}: 1, or 2 for each tile beside its parent, is needed.")
    check_dtype(dtype)
    tiled = tiled_slides(work, only, shard)  # before anything is written: the folder may be no work folder
    folder = bags_folder(work, encoder.name, scales)
    check_writable(folder)
    asked = {"encoder": encoder.name, "encoder_digest": encoder.digest, "scales": scales, "dtype": dtype}
    check_unclaimed(folder, "encoder.json", (_bag_file(folder, source).name for source in tiled), "encode")
    _same_settings(folder / "encoder.json", asked)
    found = _compare_with_tiles(work, tiled, {source.id: source for source in tiled})
    tiled = [source for source in tiled if source.id not in found.replaced]
    _forget_older(work, folder, tiled)
    target = partial(_bag_file, folder)
    sweep(tiled, target, Ledger(work))
    how = Encoding(encoder, scales, dtype, batch, workers, device if deal else None, precision)
    run = partial(_encode_some, work=work, how=how, retry_failed=retry_failed)
    rejected = _rejected(list(found.replaced), on_slide, found.unknown)
    if deal:
        return joined([deal(Job(run, tiled, target, work, f"encode {folder.name}"), on_slide), rejected])
    return joined([run(tiled, on_slide, on_tiles=on_tiles), rejected])


@dataclass(frozen=True)
class Encoding:
    """How tiles are encoded; the same for all slides of a folder."""

    encoder: Encoder
    scales: int
    dtype: str
    batch: int | None
    workers: int
    device: str | None = None  # where the encoder is brought to; None: it is there
    precision: str = "auto"


@lru_cache(maxsize=1)
def _brought(how: Encoding) -> Encoding:
    """The encoder on its device: once, where a process is dealt one slide at a time."""
    if how.device is None:
        return how
    import torch

    device = ("cuda" if torch.cuda.is_available() else "cpu") if how.device == "auto" else how.device
    return replace(how, encoder=how.encoder.to(device, how.precision))


def _encode_some(
    sources: Sequence[Source],
    on_slide: OnSlide | None,
    work: Path,
    how: Encoding,
    retry_failed: bool,
    on_tiles: Callable[[str, int, int], None] | None = None,
) -> Outcome:
    folder, how = bags_folder(work, how.encoder.name, how.scales), _brought(how)
    return for_each(
        sources,
        lambda source: _encode_one(source, work, folder, how, on_tiles),
        target=partial(_bag_file, folder),
        stage=f"encode {folder.name}",
        retry_failed=retry_failed,
        **_as_usual(work, on_slide),
    )


def _encode_one(
    source: Source, work: Path, folder: Path, how: Encoding, on_tiles: Callable[[str, int, int], None] | None
) -> None:
    from scmil.slides.tiling import read_tiling

    tiles = tiles_file(work, source.id)
    tiling = read_tiling(tiles)
    with _opened(source) as slide:
        _check_unchanged(slide, tiling, (tiles, tissue_file(work, source.id)))
        bag = _encoded(slide, tiling, how, on_tiles)
    provenance = {**bag.provenance, "tiles_digest": sha256_of_file(tiles)}
    write_bag(Bag(bag.id, bag.features, xy=bag.xy, provenance=provenance), _bag_file(folder, source), how.dtype)


def _bag_file(folder: Path, source: Source) -> Path:
    return folder / f"{safe_name(source.id)}.h5"


def bags_folder(work: str | Path, encoder: str, scales: int = 1) -> Path:
    """Where the bags of an encoder are."""
    return Path(work) / "bags" / (safe_name(encoder) + ("-two-scales" if scales == 2 else ""))


def _encoded(slide: Slide, tiling: Tiling, how: Encoding, on_tiles: Callable[[str, int, int], None] | None) -> Bag:
    total = len(tiling) + (len(tiling.parents()[0]) if how.scales == 2 else 0)
    progress = (lambda done: on_tiles(slide.id, done, total)) if on_tiles else None
    verb = join_scales if how.scales == 2 else encode
    return verb(slide, tiling, how.encoder, batch=how.batch, workers=how.workers, dtype=how.dtype, progress=progress)


def _check_unchanged(slide: Slide, tiling: Tiling, files: Sequence[Path]) -> None:
    """Reject a slide whose tiles were made from another file, or from pixels of another width."""
    (width, height), (old_width, old_height) = slide.size, tiling.slide_size
    if slide.size != tiling.slide_size:
        said = f"has {width} x {height} pixels, but {old_width} x {old_height} when it was tiled"
    elif not math.isclose(slide.mpp, tiling.slide_mpp, rel_tol=1e-6):
        said = f"has {slide.mpp:g} microns per pixel, but {tiling.slide_mpp:g} when it was tiled"
    elif tiling.slide_digest not in (None, slide.digest):
        said = "is another file than the one that was tiled"
    else:
        return
    raise SlideError(f"{slide.path} {said}. Delete {' and '.join(map(str, files))}, and tile it again.")


def _forget_older(work: Path, folder: Path, sources: Sequence[Source]) -> None:
    """Remove bags whose tiles were laid anew since."""
    for source in sources:
        _forget(_bag_file(folder, source), partial(_is_older, work, folder, source))


def _is_older(work: Path, folder: Path, source: Source) -> bool:
    bag = _bag_file(folder, source)
    if not bag.is_file():
        return False
    try:
        before = read_header(bag).provenance.get("tiles_digest")
    except DataError as error:
        if "unable to lock file" in str(error):
            return False  # another program has it open: that is no damage
        before = None  # damaged: encoded again
    return before != sha256_of_file(tiles_file(work, source.id))


# ----------------------------------------------------------------------------------------------------------- processes


class Job(NamedTuple):
    """Slides that wait for the same: `run` does some of them, in this process or in another that sees the same folder."""

    run: Callable[[Sequence[Source], OnSlide | None], Outcome]
    sources: Sequence[Source]
    target: Callable[[Source], Path]
    work: Path
    stage: str

    def is_done(self, source: Source) -> bool:
        """Whether a slide has its file, and nothing against it: then nobody need be sent to it."""
        return self.target(source).exists() and not _ledger(self.work).of(source.id, self.stage)

    def alone(self, source: Source) -> Outcome:
        """Do one slide."""
        return self.run([source], None)

    def give_up(self, source: Source, cause: str) -> Outcome:
        """Write a slide down whose process cannot do so any more."""
        _ledger(self.work).add(source.id, self.stage, cause, str(source.path))
        return Outcome(failed=(source.id,))


Deal = Callable[[Job, OnSlide | None], Outcome]


def tell(on_slide: OnSlide | None, source: Source, outcome: Outcome) -> None:
    """Say what became of a slide that was done alone."""
    if on_slide:
        on_slide(source.id, next(state for state in STATES if source.id in getattr(outcome, state)))


def _in_processes(job: Job, on_slide: OnSlide | None, jobs: int) -> Outcome:
    """Deal the slides to processes; each takes the next slide when it has finished one."""
    if jobs <= 1 or len(job.sources) <= 1:
        return job.run(job.sources, on_slide)
    outcomes = []
    alone = job._replace(sources=()).alone  # no process needs the whole list
    with process_pool(min(jobs, len(job.sources))) as pool:
        for source, outcome in zip(job.sources, pool.map(alone, job.sources), strict=True):
            outcomes.append(outcome)
            tell(on_slide, source, outcome)
    return joined(outcomes)


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome of many."""
    return Outcome(
        **{
            name: tuple(one for outcome in outcomes for one in getattr(outcome, name))
            for name in (*STATES, "bugs", "unknown")
        }
    )


def _some(names: set[str]) -> str:
    few = sorted(names)[:3]
    return ", ".join(few) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
