"""Small slide files of every kind, with pixels that are known at every place and resolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Size = tuple[int, int]
# Colours at level-0 points (x, y).
Picture = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]

OUTSIDE = 255


def ramp(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Red grows along x and green along y, by 0.2137 a pixel: the average over any window is the
    value at its centre.

    The odd slope is there so that roundings cancel, whatever the level.
    """
    return np.stack([10 + 0.2137 * x, 10 + 0.2137 * y, np.full_like(x, 120)], axis=-1)


def disc(centre: tuple[float, float], radius: float) -> Picture:
    """A white disc on black with a soft edge, so that its centre of mass is the same at every
    resolution.
    """

    def picture(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        distance = np.hypot(x - centre[0], y - centre[1])
        return np.repeat(255 * np.clip((radius - distance) / 8 + 0.5, 0, 1)[..., None], 3, axis=-1)

    return picture


def rendered(picture: Picture, size: Size, by: float = 1.0) -> Pixels:
    """A level: the picture at the centre of each pixel."""
    width, height = (round(side / by) for side in size)
    x, y = np.meshgrid((np.arange(width) + 0.5) * by, (np.arange(height) + 0.5) * by)
    return np.clip(np.rint(picture(x, y)), 0, 255).astype(np.uint8)


def write_tiff(
    path: Path,
    levels: Sequence[Pixels],
    mpp: float | None = 0.25,
    *,
    compression: str | None = "zlib",
    tile: int = 64,
    subifds: bool = False,
    description: str | None = None,
) -> Path:
    """A tiled pyramid; levels in SubIFDs, as OME-TIFF has them, if asked."""
    import tifffile

    density = None if mpp is None else (10_000 / mpp, 10_000 / mpp)
    how: dict[str, Any] = dict(tile=(tile, tile), photometric="rgb", compression=compression)
    how |= dict(resolution=density, resolutionunit="CENTIMETER") if density else {}
    with tifffile.TiffWriter(path, ome=subifds) as file:
        meta = (
            {"axes": "YXS"} | ({"PhysicalSizeX": mpp, "PhysicalSizeY": mpp} if mpp else {})
            if subifds
            else None
        )
        first: dict[str, Any] = dict(subifds=len(levels) - 1) if subifds else {}
        file.write(levels[0], description=description, metadata=meta, **first, **how)
        for level in levels[1:]:
            file.write(
                level,
                description=None if subifds else description,
                subfiletype=1,
                metadata=None,
                **how,
            )
    return path


def write_svs(
    path: Path, levels: Sequence[Pixels], mpp: float | None = 0.25, objective: float | None = 40
) -> Path:
    """A slide that OpenSlide takes for one of Aperio's."""
    description = "Aperio Image Library v11.2.1 \r\nmade by a test"
    description += f"|AppMag = {objective:g}" if objective else ""
    description += f"|MPP = {mpp}" if mpp else ""
    return write_tiff(path, levels, mpp=None, description=description)


def write_dicom(
    folder: Path, pixels: Pixels, mpp: float = 0.25, tile: int = 64, series: str | None = None
) -> Path:
    """A DICOM whole slide image of one level: TILED_FULL, not compressed, one file. Its path is
    returned.
    """
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, VLWholeSlideMicroscopyImageStorage, generate_uid

    height, width, _ = pixels.shape
    rows, columns = -(-height // tile), -(-width // tile)
    whole = np.full((rows * tile, columns * tile, 3), OUTSIDE, np.uint8)
    whole[:height, :width] = pixels
    frames = whole.reshape(rows, tile, columns, tile, 3).swapaxes(1, 2)
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = VLWholeSlideMicroscopyImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.SOPClassUID = VLWholeSlideMicroscopyImageStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = generate_uid(), series or generate_uid()
    dataset.Modality, dataset.ImageType = "SM", ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    dataset.DimensionOrganizationType = "TILED_FULL"
    dataset.TotalPixelMatrixColumns, dataset.TotalPixelMatrixRows = width, height
    dataset.Columns = dataset.Rows = tile
    dataset.NumberOfFrames, dataset.SamplesPerPixel, dataset.PhotometricInterpretation = (
        rows * columns,
        3,
        "RGB",
    )
    dataset.PlanarConfiguration, dataset.PixelRepresentation = 0, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.TotalPixelMatrixFocalPlanes = 1
    spacing, groups, lens = Dataset(), Dataset(), Dataset()
    spacing.PixelSpacing = [mpp / 1000, mpp / 1000]
    groups.PixelMeasuresSequence = [spacing]
    dataset.SharedFunctionalGroupsSequence = [groups]
    lens.ObjectiveLensPower, lens.OpticalPathIdentifier = 10 / mpp, "1"
    dataset.OpticalPathSequence = [lens]
    dataset.PixelData = frames.tobytes()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{dataset.SOPInstanceUID}.dcm"
    dataset.save_as(path, enforce_file_format=True)
    return path
