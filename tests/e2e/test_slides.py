"""From slides to bags: tiles have the pixels of their location, and bad slides stop nothing."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("openslide")
# Not imported here: its import fails beside another build of torch, which scmil handles.
if not find_spec("torchvision"):
    pytest.skip("torchvision is not installed", allow_module_level=True)

from command import scmil
from slide_files import ramp, rendered, write_dicom, write_svs

from scmil.bags.hdf5 import read_bag, read_header
from scmil.core.jobs.failure_log import FailureLog
from scmil.encoding.cohort import (
    EncodeSettings,
    TileSettings,
    encode_slides,
    find_cohort,
    tile_slides,
)
from scmil.encoding.encoders import Encoder
from scmil.slides.synthetic import paint

REAL = Path(__file__).parents[1] / "data" / "slides" / "cmu-1-small-region.svs"


class Corners(nn.Module):
    """The mean colour of each of four by four parts of a tile: pixels that a test can predict."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)


def pixels_as_features() -> Encoder:
    return Encoder(
        "pixels", 48, Corners(), "none", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )


def outline_of_all(work: Path, slide_id: str, size: tuple[int, int]) -> None:
    """A tissue file as if drawn in QuPath, so that tests of pixels do not depend on what looks like
    tissue.
    """
    width, height = size
    ring = [[0, 0], [width, 0], [width, height], [0, height], [0, 0]]
    feature = {
        "type": "Feature",
        "properties": {},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }
    path = work / "tissue" / f"{slide_id}.geojson"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))


def expected_parts(xy: np.ndarray, side: float) -> np.ndarray:
    """What the ramp has in the middle of each of four by four parts of each tile, as the features
    are laid out.
    """
    at = (np.arange(4) + 0.5) * side / 4
    x = xy[:, 0, None, None] + at[None, None, :] + np.zeros((1, 4, 1))
    y = xy[:, 1, None, None] + at[None, :, None] + np.zeros((1, 1, 4))
    return np.moveaxis(ramp(x, y), -1, 1).reshape(len(xy), -1) / 255


def svs_of_two_levels(folder: Path) -> tuple[Path, float]:
    size = (1000, 800)
    levels = [rendered(ramp, size), rendered(ramp, (250, 200), by=4)]
    return write_svs(folder / "two.svs", levels, mpp=None, objective=None), 0.3


def dicom(folder: Path) -> tuple[Path, float]:
    return write_dicom(folder / "dicom", rendered(ramp, (960, 704)), mpp=0.25), 0.25


def picture(folder: Path) -> tuple[Path, float]:
    from PIL import Image

    path = folder / "picture.png"
    Image.fromarray(rendered(ramp, (900, 700))).save(path)
    return path, 0.5


@pytest.mark.parametrize("kind", [svs_of_two_levels, dicom, picture])
@pytest.mark.parametrize("tile_mpp", [0.5, 0.65])
def test_tiles_have_the_pixels_of_their_place_and_their_size_in_microns(
    kind: Callable[[Path], tuple[Path, float]], tile_mpp: float, tmp_path: Path
) -> None:
    path, mpp = kind(tmp_path)
    work = tmp_path / "work"
    settings = TileSettings(size_px=64, mpp=tile_mpp, min_tissue=0.5)
    [source] = find_cohort(path, mpp)
    from scmil.slides import open_slide

    with open_slide(path, mpp=mpp) as slide:
        outline_of_all(work, source.id, slide.size)
        width, height = slide.size
    assert tile_slides([source], work, settings).done == (source.id,)
    assert encode_slides(work, pixels_as_features(), EncodeSettings(dtype="float32")).done == (
        source.id,
    )
    bag = read_bag(work / "bags" / "pixels" / f"{source.id}.h5")
    side = 64 * tile_mpp / mpp
    assert bag.provenance["side_level0"] == pytest.approx(side)
    assert bag.provenance["side_level0"] * bag.provenance["slide_mpp"] == pytest.approx(
        64 * tile_mpp
    )
    across, down = (int((length - side) // -(-side // 1)) + 1 for length in (width, height))
    assert len(bag.features) == across * down
    assert bag.xy is not None
    np.testing.assert_allclose(
        bag.features.numpy(), expected_parts(bag.xy.numpy(), side), atol=2.5 / 255
    )


def test_the_same_tissue_at_three_resolutions_gives_the_same_tiles_in_microns(
    tmp_path: Path,
) -> None:
    colours, places = [], []
    for mpp, side in ((0.25, 4000), (0.5, 2000), (1.0, 1000)):
        work = tmp_path / f"work{mpp}"
        painting = paint(
            tmp_path / f"at{mpp}.svs", size=(side, side), mpp=mpp, seed=5, tumour=False
        )
        [source] = find_cohort(painting.path)
        outline_of_all(work, source.id, (side, side))
        tile_slides([source], work, TileSettings(size_px=128, mpp=1.0))
        encode_slides(work, pixels_as_features(), EncodeSettings(dtype="float32"))
        bag = read_bag(work / "bags" / "pixels" / f"{source.id}.h5")
        assert bag.xy is not None
        places.append(np.rint(bag.xy.numpy() * mpp))
        colours.append(bag.features.numpy().ravel())
    for other in (1, 2):
        np.testing.assert_array_equal(places[0], places[other])
        assert np.corrcoef(colours[0], colours[other])[0, 1] > 0.97


def test_the_real_slide_from_the_command_line(tmp_path: Path) -> None:
    import openslide

    done = scmil("encode", REAL, "--out", tmp_path, "--random", 0, "--preset", "biopsy", "--json")
    page = json.loads(done.stdout)
    assert page["encode"]["done"] == ["cmu-1-small-region"]
    [file] = (tmp_path / "bags").rglob("*.h5")
    bag = read_bag(file)
    assert 40 <= len(bag.features) <= 70
    assert bag.features.shape[1] == 512
    assert bag.provenance["slide_mpp"] == pytest.approx(0.499)
    # On the whole the tiles are tissue: darker and redder than the glass around them.
    slide = openslide.OpenSlide(REAL)
    assert bag.xy is not None
    tiles = [
        np.asarray(slide.read_region(tuple(xy), 0, (256, 256)))[..., :3] for xy in bag.xy.tolist()
    ]
    assert np.mean([tile.mean() for tile in tiles]) < 215
    assert (tmp_path / "tiles" / "cmu-1-small-region.jpg").stat().st_size > 10_000


def test_a_slide_without_mpp_is_rejected_with_remedies_and_tiled_with_one(
    tmp_path: Path,
) -> None:
    path, _ = svs_of_two_levels(tmp_path)
    work = tmp_path / "work"
    refused = scmil("tile", path, "--out", work, code=1)
    assert "--mpp-of" in refused.stderr
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\ntwo.svs,0.3\n")
    outline_of_all(work, "two", (1000, 800))
    scmil("tile", path, "--out", work, "--mpp-of", table, "--retry-failed")
    assert not FailureLog(work).read()
    wrong = scmil(
        "tile",
        path,
        "--out",
        tmp_path / "other",
        "--mpp-of",
        table,
        "--mag",
        40,
        "--mpp",
        0.5,
        code=1,
    )
    assert "Specify only one of them" in wrong.stderr


# --------------------------------------------------------------------------------------- bad slides


def bad_slides(folder: Path) -> None:
    good = paint(folder / "good.svs", size=(1500, 1500), seed=1)
    content = good.path.read_bytes()
    (folder / "truncated.svs").write_bytes(content[: len(content) // 3])
    (folder / "empty.tif").write_bytes(b"")
    (folder / "text.ndpi").write_text("not a slide at all\n" * 50)
    header = struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 64)), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    (folder / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    from PIL import Image

    pink = Image.new("RGB", (700, 700), (205, 90, 165))
    pink.save(folder / "wrong.png")
    (folder / "wrong.png").rename(folder / "wrong.svs")
    Image.new("RGB", (700, 700), (250, 250, 250)).save(folder / "glass.png")


def test_one_bad_slide_never_stops_a_run(tmp_path: Path) -> None:
    slides, work = tmp_path / "slides", tmp_path / "work"
    slides.mkdir()
    bad_slides(slides)
    done = scmil("encode", slides, "--out", work, "--random", 0, "--mpp-of", 0.5, code=1)
    causes = {failure.slide: failure.cause for failure in FailureLog(work).read()}
    assert set(causes) == {"truncated", "empty", "text", "huge", "glass"}
    for slide, word in {
        "empty": "0 bytes",
        "text": "not a slide",
        "huge": "2147483647 px",
        "glass": "no tissue",
    }.items():
        assert word in causes[slide], causes[slide]
    assert "damaged or truncated" in causes["truncated"]
    made = {path.stem for path in (work / "bags").rglob("*.h5")}
    assert made == {"good", "wrong"}
    assert "5 slides failed" in done.stderr
    again = scmil("encode", slides, "--out", work, "--random", 0, "--mpp-of", 0.5, "--json", code=1)
    assert set(json.loads(again.stdout)["encode"]["kept"]) == made
    shutil.copy(slides / "good.svs", slides / "truncated.svs")  # complete now
    retried = scmil(
        "encode",
        slides,
        "--out",
        work,
        "--random",
        0,
        "--mpp-of",
        0.5,
        "--retry-failed",
        "--json",
        code=1,
    )
    assert json.loads(retried.stdout)["encode"]["done"] == ["truncated"]
    assert {failure.slide for failure in FailureLog(work).read()} == {
        "empty",
        "text",
        "huge",
        "glass",
    }


def test_two_slides_of_one_name_are_both_written_down_and_the_others_done(tmp_path: Path) -> None:
    for name in ("a/same.svs", "b/same.svs", "c/other.svs"):
        (tmp_path / "slides" / name).parent.mkdir(parents=True)
        paint(tmp_path / "slides" / name, size=(1000, 1000), seed=2)
    done = scmil("tile", tmp_path / "slides", "--out", tmp_path / "work", code=1)
    assert "2 slides have the name 'same'" in done.stderr
    assert [path.stem for path in (tmp_path / "work" / "tiles").glob("*.h5")] == ["other"]


def test_an_edited_outline_is_taken_and_its_bag_made_again(tmp_path: Path) -> None:
    slide, work = paint(tmp_path / "slide.svs", size=(2000, 2000), seed=3).path, tmp_path / "work"
    scmil("encode", slide, "--out", work, "--random", 0)
    [bag] = (work / "bags").rglob("*.h5")
    before = read_header(bag)
    outline_of_all(work, "slide", (1000, 2000))
    scmil("encode", slide, "--out", work, "--random", 0)
    after = read_bag(bag)
    # Four columns of seven tiles reach into the left half.
    assert len(after.features) == 28 != before.instances
    assert after.xy is not None
    assert int(after.xy[:, 0].max()) == 768


def test_a_folder_keeps_to_its_settings(tmp_path: Path) -> None:
    slide = paint(tmp_path / "slide.svs", size=(1000, 1000), seed=3).path
    scmil("tile", slide, "--out", tmp_path / "work")
    refused = scmil("tile", slide, "--out", tmp_path / "work", "--mpp", 1.0, code=1)
    assert "mpp = 0.5 before, 1.0 now" in refused.stderr
    late = scmil("encode", tmp_path / "work", "--random", 0, "--mpp", 1.0, code=1)
    assert "is tiled already" in late.stderr
