"""The stage `encode`: compute the features of tiles and write one bag per slide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from scmil.bags.bag import Bag
from scmil.bags.hdf5 import check_dtype, read_header, write_bag
from scmil.core.fingerprint import sha256_of_file
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.locks import check_writable, safe_name
from scmil.core.jobs.resume import JobOutcome, prepare_targets
from scmil.core.jobs.shards import ALL, Shard
from scmil.core.outputs import check_unclaimed
from scmil.encoding.dispatch import Dispatch, Job, OnSlide, merge_outcomes, reject_slides
from scmil.encoding.features import encode, join_scales
from scmil.encoding.identity import compare_with_tiles
from scmil.encoding.work_folder import (
    Source,
    bags_folder,
    check_same_settings,
    delete_if_stale,
    tiled_slides,
    tiles_file,
    tissue_file,
)
from scmil.errors import DataError, OptionError, SlideError
from scmil.slides import Slide

if TYPE_CHECKING:
    from scmil.encoding.encoders import Encoder
    from scmil.slides.tiling import Tiling

# Called with the name of a slide, the number of encoded tiles and the number of all its tiles.
OnTiles = Callable[[str, int, int], None]


@dataclass(frozen=True)
class EncodeSettings:
    """How tiles are encoded.

    Args:
        scales: 1, or 2 to append the features of each tile's parent, which is four times as wide.
        dtype: Type of the features in the files, "float16" or "float32".
        batch: Tiles per batch; None chooses by device.
        workers: Number of threads that read tiles; None chooses by the number of cores.
    """

    scales: int = 1
    dtype: str = "float16"
    batch: int | None = None
    workers: int | None = None

    def check(self) -> None:
        """Raise for values that are not supported."""
        if self.scales not in (1, 2):
            raise OptionError(
                f"scales = {self.scales}; expected 1, or 2 for the features of each tile and its "
                "parent."
            )
        check_dtype(self.dtype)


def encode_slides(
    work: str | Path,
    encoder: Encoder,
    settings: EncodeSettings | None = None,
    *,
    only: Sequence[str] | None = None,
    retry_failed: bool = False,
    shard: Shard = ALL,
    dispatch: Dispatch | None = None,
    device: str | None = None,
    precision: str = "auto",
    on_start: Callable[[int], None] | None = None,
    on_slide: OnSlide | None = None,
    on_tiles: OnTiles | None = None,
) -> JobOutcome:
    """Encode the tiles of a work folder into `work/bags/<encoder>/`, one bag per slide.

    Slides that fail are written to the failure log, and the others are processed. Bags whose tiles
    have not changed are kept.

    Args:
        work: A work folder of `tile_slides`.
        encoder: The encoder; without `dispatch` it is used on its own device.
        settings: How tiles are encoded, the same for all bags of the folder.
        only: Names of the slides to encode; None for all that have tiles.
        retry_failed: Whether slides of the failure log are tried again.
        shard: The part of the slides that is encoded by this call.
        dispatch: Runs the job elsewhere, for example on a cluster.
        device: With `dispatch`, the device that the encoder is moved to; "auto" is a GPU if the
            computer has one.
        precision: With `dispatch`, the precision that the encoder is converted to.
        on_start: Called with the number of slides before the first one is encoded.
        on_slide: Called with the name of each slide and its state, see `tile_slides`.
        on_tiles: Called with the name of a slide, the number of encoded tiles and the number of
            its tiles; not with `dispatch`.

    Returns:
        The names of the slides by state.

    Raises:
        DataError: If `work` is not a work folder.
        OptionError: If a setting is invalid, or the folder of bags was started with another one.
        OutputError: If the folder cannot be written to, or contains files of other programs.
    """
    work, settings = Path(work), settings or EncodeSettings()
    settings.check()
    sources = tiled_slides(work, only, shard)  # before anything is written into `work`
    if on_start:
        on_start(len(sources))
    stage = EncodeStage(
        work,
        encoder,
        settings,
        retry_failed,
        device if dispatch else None,
        precision,
        None if dispatch else on_tiles,
    )
    check_writable(stage.folder)
    names = (stage.target(source).name for source in sources)
    check_unclaimed(stage.folder, "encoder.json", names, "encode")
    check_same_settings(
        stage.folder / "encoder.json",
        {
            "encoder": encoder.name,
            "encoder_digest": encoder.digest,
            "scales": settings.scales,
            "dtype": settings.dtype,
        },
    )
    identities = compare_with_tiles(work, sources, {source.id: source for source in sources})
    sources = [source for source in sources if source.id not in identities.replaced]
    for source in sources:
        delete_if_stale(stage.target(source), partial(stage.is_stale, source))
    prepare_targets(sources, stage.target, FailureLog(work))
    rejected = reject_slides(list(identities.replaced), on_slide, identities.unknown)
    job = Job(stage, sources)
    outcome = dispatch(job, on_slide) if dispatch else job.run(on_slide)
    return merge_outcomes([outcome, rejected])


@dataclass(frozen=True)
class EncodeStage:
    """Makes the bag of a slide from its tiles."""

    work: Path
    encoder: Encoder
    settings: EncodeSettings
    retry_failed: bool = False
    device: str | None = None  # where the encoder is moved to; None: it stays where it is
    precision: str = "auto"
    on_tiles: OnTiles | None = field(default=None, compare=False)

    @property
    def folder(self) -> Path:
        """The folder of the bags."""
        return bags_folder(self.work, self.encoder.name, self.settings.scales)

    @property
    def name(self) -> str:
        """The name of the stage in the failure log."""
        return f"encode {self.folder.name}"

    def prepare(self) -> None:
        """Move the encoder to its device."""
        self._placed_encoder()

    def target(self, source: Source) -> Path:
        """The file of the bag."""
        return self.folder / f"{safe_name(source.id)}.h5"

    def is_stale(self, source: Source) -> bool:
        """Whether the slide was tiled again after it was encoded."""
        bag = self.target(source)
        if not bag.is_file():
            return False
        try:
            digest = read_header(bag).provenance.get("tiles_digest")
        except DataError as error:
            # A file that another program has open is not damaged.
            return "unable to lock file" not in str(error)
        return digest != sha256_of_file(tiles_file(self.work, source.id))

    def make(self, source: Source) -> None:
        """Encode the tiles of a slide and write its bag."""
        from scmil.slides.tile_files import read_tiling

        tiles = tiles_file(self.work, source.id)
        tiling = read_tiling(tiles)
        with source.open() as slide:
            _check_unchanged(slide, tiling, (tiles, tissue_file(self.work, source.id)))
            bag = self._encode(slide, tiling)
        provenance = {**bag.provenance, "tiles_digest": sha256_of_file(tiles)}
        bag = Bag(bag.id, bag.features, xy=bag.xy, provenance=provenance)
        write_bag(bag, self.target(source), self.settings.dtype)

    def _placed_encoder(self) -> Encoder:
        """The encoder on the device of this process."""
        if self.device is None:
            return self.encoder
        return _move_encoder(self.encoder, self.device, self.precision)

    def _encode(self, slide: Slide, tiling: Tiling) -> Bag:
        """The features of all tiles, at one or two scales."""
        settings, on_tiles = self.settings, self.on_tiles
        two_scales = settings.scales == 2
        total = len(tiling) + (len(tiling.parents()[0]) if two_scales else 0)
        progress = (lambda done: on_tiles(slide.id, done, total)) if on_tiles else None
        return (join_scales if two_scales else encode)(
            slide,
            tiling,
            self._placed_encoder(),
            batch=settings.batch,
            workers=settings.workers,
            dtype=settings.dtype,
            progress=progress,
        )


@lru_cache(maxsize=1)
def _move_encoder(encoder: Encoder, device: str, precision: str) -> Encoder:
    """The encoder on a device; cached, since a process may be sent one slide at a time."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return encoder.to(device, precision)


def _check_unchanged(slide: Slide, tiling: Tiling, files: Sequence[Path]) -> None:
    """Reject a slide whose tiles were made from another file or with other microns per pixel."""
    (width, height), (old_width, old_height) = slide.size, tiling.slide_size
    if slide.size != tiling.slide_size:
        change = f"has {width} x {height} pixels, but {old_width} x {old_height} when it was tiled"
    elif not math.isclose(slide.mpp, tiling.slide_mpp, rel_tol=1e-6):
        change = f"has {slide.mpp:g} microns per pixel, but {tiling.slide_mpp:g} when it was tiled"
    elif tiling.slide_digest not in (None, slide.digest):
        change = "is another file than the one that was tiled"
    else:
        return
    raise SlideError(
        f"{slide.path} {change}. Delete {' and '.join(map(str, files))}, and tile it again."
    )
