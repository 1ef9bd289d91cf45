"""Read and write tilings as HDF5 files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.core.limits import BOUNDS, bounded
from scmil.core.safe_hdf5 import h5_array, opened_h5
from scmil.core.safe_io import DAMAGE, LARGEST_SIDE_PX, check_number, check_provenance, check_xy
from scmil.errors import DataError
from scmil.slides.tiling import Tiling

if TYPE_CHECKING:
    from scmil.slides.tissue import Tissue


FORMAT = "scmil-tiles-1"


def write_tiling(
    tiling: Tiling, tissue: Tissue, path: str | Path, stated_mpp: float | None = None
) -> None:
    """Write a tiling as HDF5, with the attributes that readers of TRIDENT expect.

    The attributes of TRIDENT are rounded magnifications and pixels; the exact values are `mpp`,
    `slide_mpp` and `side_level0`.

    Args:
        tiling: The tiles.
        tissue: The tissue that they cover.
        path: The file.
        stated_mpp: If microns per pixel were given for the slide: those that its file states, or 0
            if it states none. `None` if none were given.
    """
    h5py = import_extra("h5py", "slides")
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        coords = file.create_dataset("coords", data=tiling.xy.astype(np.int64).reshape(-1, 2))
        file["fraction"] = tiling.fraction
        if tiling.slide_digest is not None:
            coords.attrs["slide_digest"] = tiling.slide_digest
        if stated_mpp is not None:
            coords.attrs["stated_mpp"] = float(stated_mpp)
        coords.attrs.update(
            name=tiling.slide_id,
            patch_size=tiling.size_px,
            patch_size_level0=round(tiling.side),
            level0_width=tiling.slide_size[0],
            level0_height=tiling.slide_size[1],
            overlap=tiling.overlap_px,
            target_magnification=round(10 / tiling.mpp),
            level0_magnification=round(10 / tiling.slide_mpp),
            scmil_format=FORMAT,
            size_px=tiling.size_px,
            mpp=tiling.mpp,
            slide_mpp=tiling.slide_mpp,
            side_level0=tiling.side,
            stride_level0=tiling.stride,
            tissue=json.dumps(dict(tissue.recipe), sort_keys=True),
            warnings=json.dumps(tiling.warnings),
        )
    write_atomically(Path(path), content.getvalue())


def read_tiling(path: str | Path) -> Tiling:
    """Read a tiling that `write_tiling` wrote."""
    import_extra("h5py", "slides")
    try:
        with opened_h5(path) as file:
            actual = file["coords"].attrs.get("scmil_format") if "coords" in file else None
            if actual != FORMAT:
                raise DataError(
                    f"{path} does not contain tiles of scmil: its format is {actual!r}, expected "
                    f"{FORMAT!r}."
                )
            return _build_tiling(
                h5_array(file, "coords"), h5_array(file, "fraction"), dict(file["coords"].attrs)
            )
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except DAMAGE as error:
        if isinstance(error, DataError) and str(path) in str(error):
            raise
        raise DataError(
            f"{path} is damaged: {str(error).rstrip('.')}. Tile this slide again."
        ) from None


def _build_tiling(xy: NDArray[Any], fraction: NDArray[Any], attributes: dict[str, Any]) -> Tiling:
    if xy.shape != (len(fraction), 2) or fraction.ndim != 1:
        raise ValueError(
            f"coordinates of shape {xy.shape} and fractions of shape {fraction.shape} do not fit"
        )
    if not np.issubdtype(xy.dtype, np.integer) or not ((fraction >= 0) & (fraction <= 1)).all():
        raise ValueError("coordinates are not whole numbers, or fractions are not between 0 and 1")
    for key in ("size_px", "mpp", "slide_mpp"):
        bounded(key, np.asarray(attributes[key]).item(), "coords")
    if (
        not BOUNDS["overlap_px"].holds(int(attributes["overlap"]))
        or not 0 < int(attributes["stride_level0"]) < 2**31
    ):
        raise ValueError("the overlap or the stride is not that of tiles")
    tiling = Tiling(
        slide_id=str(attributes["name"]),
        xy=check_xy(xy),
        size_px=int(attributes["size_px"]),
        mpp=float(attributes["mpp"]),
        slide_mpp=float(attributes["slide_mpp"]),
        slide_size=(int(attributes["level0_width"]), int(attributes["level0_height"])),
        overlap_px=int(attributes["overlap"]),
        fraction=fraction.astype(np.float32),
        stride=int(attributes["stride_level0"]),
        warnings=tuple(map(str, json.loads(attributes["warnings"]))),
        slide_digest=None if (digest := attributes.get("slide_digest")) is None else str(digest),
    )
    check_provenance(
        {
            "mpp": tiling.mpp,
            "slide_mpp": tiling.slide_mpp,
            "slide_size": tiling.slide_size,
            "size_px": tiling.size_px,
        }
    )
    check_number("overlap", tiling.overlap_px, 0, tiling.size_px - 1)
    check_number("stride_level0", tiling.stride, 1, LARGEST_SIDE_PX)
    return tiling
