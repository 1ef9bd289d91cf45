from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from reader_cases import RAMP, SIZE, Image, in_tiles, tifffile
from slide_files import ramp, rendered, write_dicom, write_svs, write_tiff

from scmil.errors import MissingExtraError, SlideError
from scmil.slides import open_slide


def test_dicom_gives_its_pixels(tmp_path: Path) -> None:
    write_dicom(tmp_path / "slide.7", RAMP, mpp=0.25, series="1.2.3")
    half = rendered(ramp, SIZE, by=2)
    write_dicom(tmp_path / "slide.7", half, mpp=0.5, series="1.2.3")
    with open_slide(tmp_path / "slide.7") as slide:
        assert (slide.id, slide.vendor, slide.reader) == ("slide.7", "dicom", "openslide")
        assert (slide.mpp, slide.objective, slide.storage_tile) == (0.25, 40, (64, 64))
        np.testing.assert_array_equal(slide.region(0, (0, 0), SIZE), RAMP)
        np.testing.assert_array_equal(slide.read((0, 0), (150, 105), mpp=0.5), half)


def with_a_damaged_tile(path: Path) -> Path:
    """A slide whose second tile, 64 px from the left, holds no pixels any more."""
    write_svs(path, [RAMP])
    with tifffile.TiffFile(path) as file:
        start, length = file.pages[0].dataoffsets[1], file.pages[0].databytecounts[1]
    content = bytearray(path.read_bytes())
    content[start : start + length] = b"\xff" * length
    path.write_bytes(content)
    return path


def test_damage_is_reported_with_its_place_and_the_rest_stays_readable(tmp_path: Path) -> None:
    with open_slide(with_a_damaged_tile(tmp_path / "a.svs")) as slide:
        for _ in range(2):
            with pytest.raises(
                SlideError, match=r"a\.svs: the file is damaged or truncated at 70, 5: "
            ):
                slide.region(0, (70, 5), (10, 10))
            np.testing.assert_array_equal(slide.region(0, (128, 0), (100, 64)), RAMP[:64, 128:228])
        with pytest.raises(
            SlideError, match=r"a\.svs: the file is damaged or truncated at 60, 0: "
        ):
            slide.read((60, 0), 30, mpp=0.5)


def test_damage_in_one_thread_does_not_reach_the_others(tmp_path: Path) -> None:
    def read(x: int) -> bool:
        try:
            return bool((slide.region(0, (x, 0), (64, 64)) == RAMP[:64, x : x + 64]).all())
        except SlideError:
            return False

    with (
        open_slide(with_a_damaged_tile(tmp_path / "a.svs")) as slide,
        ThreadPoolExecutor(4) as pool,
    ):
        places = [0, 64, 128, 192] * 10
        assert list(pool.map(read, places)) == [x != 64 for x in places]


def test_what_is_no_slide_is_rejected_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "empty.svs").touch()
    (tmp_path / "text.svs").write_text("slide,label\n1,0\n")
    for name, message in {
        "empty.svs": r"empty\.svs is empty \(0 bytes\)",
        "text.svs": r"text\.svs is not a slide.*its 16 bytes start with b'slide,la'",
        "missing.svs": r"missing\.svs: no such file",
        ".": "is a folder, not a slide",
    }.items():
        with pytest.raises(SlideError, match=message):
            open_slide(tmp_path / name)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
)
def test_a_file_without_permission_is_rejected(tmp_path: Path) -> None:
    in_tiles(tmp_path / "a.tif")
    (tmp_path / "a.tif").chmod(0)
    with pytest.raises(SlideError, match="no permission to read it"):
        open_slide(tmp_path / "a.tif")


def test_a_wrong_name_is_only_warned_of(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "a.svs", format="PNG")
    in_tiles(tmp_path / "b.png")
    in_tiles(tmp_path / "c.tif")
    with open_slide(tmp_path / "a.svs") as slide:
        np.testing.assert_array_equal(slide.region(0, (0, 0), SIZE), RAMP)
        assert slide.warnings == ("the suffix is .svs, but the content is PNG; it is read as PNG.",)
    assert open_slide(tmp_path / "b.png").warnings == (
        "the suffix is .png, but the content is TIFF; it is read as TIFF.",
    )
    assert open_slide(tmp_path / "c.tif").warnings == ()


@pytest.mark.parametrize(("name", "folder"), [("a.mrxs", "a"), ("a.vsi", "_a_")])
def test_the_cover_of_a_slide_is_not_taken_for_the_slide(
    tmp_path: Path, name: str, folder: str
) -> None:
    Image.fromarray(RAMP).save(tmp_path / name, format="JPEG" if name == "a.mrxs" else "TIFF")
    with pytest.raises(
        SlideError,
        match=f"only an overview of a slide.* in the folder {folder}, which does not exist",
    ):
        open_slide(tmp_path / name)


@pytest.mark.parametrize("kept", [0.02, 0.4, 0.95])
def test_a_truncated_svs_is_rejected_when_it_is_opened_or_read(tmp_path: Path, kept: float) -> None:
    content = write_svs(tmp_path / "whole.svs", [RAMP]).read_bytes()
    (tmp_path / "cut.svs").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(SlideError, match=r"cut\.svs: the file is damaged or truncated"):
        open_slide(tmp_path / "cut.svs").read((0, 0), SIZE, mpp=0.25)


@pytest.mark.parametrize("kind", ["svs", "tif", "ome.tif"])
def test_random_damage_is_survived_or_rejected_and_never_a_crash(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    content = (
        write_svs(path, [RAMP])
        if kind == "svs"
        else write_tiff(path, [RAMP], subifds=kind != "tif")
    ).read_bytes()
    generator, refused = np.random.default_rng(0), 0
    for _ in range(80):
        damaged = np.frombuffer(content, np.uint8).copy()
        # The header is in front.
        places = np.r_[generator.integers(0, 500, 3), generator.integers(0, len(content), 2)]
        damaged[places] = generator.integers(0, 256, 5)
        path.write_bytes(damaged.tobytes())
        try:
            with open_slide(path, mpp=0.25) as slide:
                slide.read((10, 10), 64, mpp=0.6)
        except SlideError:
            refused += 1
    assert refused > 10


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiff(tmp_path / "a.ome.tif", [RAMP], subifds=True)
    for module in ("defusedxml.ElementTree", "simplejpeg", "tifffile", "openslide"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            MissingExtraError, match=rf"needs the module '{module}'.*pip install 'scmil\[slides\]'"
        ):
            open_slide(tmp_path / "a.ome.tif")
