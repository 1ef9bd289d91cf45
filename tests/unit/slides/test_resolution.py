from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ramp_slides import Image, tiny
from slide_files import ramp, rendered, write_svs

from scmil.errors import SlideError
from scmil.slides import open_slide
from scmil.slides.resolution import resolve


@pytest.mark.parametrize(
    ("how", "mpp"),
    [
        (dict(resolution=(20_000, 20_000), resolutionunit="CENTIMETER"), 0.5),
        (dict(resolution=(101_600, 101_600), resolutionunit="INCH"), 0.25),
        (dict(resolution=(72, 72), resolutionunit="INCH"), None),
        (dict(resolution=(96, 96), resolutionunit="INCH"), None),
        (dict(resolution=(300, 300), resolutionunit="INCH"), None),
        (dict(resolution=(1, 1), resolutionunit="CENTIMETER"), None),
        (dict(resolution=(40_000, 40_000), resolutionunit="NONE"), None),
        (dict(description="Aperio x|MPP = 0.2520|AppMag = 40", metadata=None), 0.252),
    ],
)
def test_a_tiff_says_its_resolution_in_tags_or_words(
    tmp_path: Path, how: dict[str, Any], mpp: float | None
) -> None:
    slide = tiny(tmp_path / "a.tif", **how)
    assert slide.known_mpp == (None if mpp is None else pytest.approx(mpp))
    assert slide.mpp_source == ("unknown" if mpp is None else "file")


@pytest.mark.parametrize(("size", "unit"), [(0.25, "µm"), (250, "nm"), (0.00025, "mm")])
def test_ome_says_its_resolution_in_a_unit(tmp_path: Path, size: float, unit: str) -> None:
    ome = {
        f"PhysicalSize{axis}{what}": value
        for axis in "XY"
        for what, value in (("", size), ("Unit", unit))
    }
    assert tiny(tmp_path / "a.ome.tif", metadata={"axes": "YXS", **ome}).mpp == pytest.approx(0.25)


def test_a_picture_says_its_resolution_if_it_is_no_printers(tmp_path: Path) -> None:
    for dpi, mpp in ((50_800, 0.5), (72, None)):
        Image.new("RGB", (9, 9)).save(tmp_path / "a.png", dpi=(dpi, dpi))
        assert open_slide(tmp_path / "a.png").known_mpp == (mpp and pytest.approx(mpp, rel=1e-4))


def test_the_objective_stands_in_for_a_missing_resolution(tmp_path: Path) -> None:
    slide = open_slide(
        write_svs(tmp_path / "a.svs", [rendered(ramp, (90, 70))], mpp=None, objective=20)
    )
    assert (slide.mpp, slide.mpp_source, slide.objective) == (0.5, "objective", 20)


def test_a_given_resolution_wins(tmp_path: Path) -> None:
    path = write_svs(tmp_path / "a.svs", [rendered(ramp, (90, 70))], mpp=0.25)
    assert (open_slide(path).mpp, open_slide(path).mpp_source) == (0.25, "file")
    given = open_slide(path, mpp=0.23)
    assert (given.mpp, given.mpp_source, given.warnings) == (0.23, "given", ())
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(SlideError, match="expected a positive number"):
            open_slide(path, mpp=wrong)


def test_an_unknown_resolution_is_rejected_with_the_remedies(tmp_path: Path) -> None:
    slide = tiny(tmp_path / "a.tif")
    for remedy in (
        "table with the columns slide and mpp",
        "--mpp-of",
        r"open_slide\(path, mpp=0.25\)",
        "0.25 for x40",
    ):
        with pytest.raises(SlideError, match=remedy):
            slide.mpp
    with pytest.raises(SlideError, match="slide 'a' contains neither its resolution"):
        slide.read((0, 0), 5, mpp=0.5)


@pytest.mark.parametrize(
    ("mpp_xy", "objective", "expected"),
    [
        ((2.5, 2.5), 40, "mpp 2.5 contradicts the objective x40 (about 0.25): 10 times too large?"),
        (
            (0.25, 0.25),
            20,
            "mpp 0.25 contradicts the objective x20 (about 0.5): 2 times too small?",
        ),
        ((8.0, 8.0), None, "mpp 8 is implausible: values of scanners lie between 0.05 and 5."),
        ((0.01, 0.01), None, "mpp 0.01 is implausible"),
        (
            (0.25, 0.26),
            40,
            "pixels are not square: mpp 0.25 in x and 0.26 in y. The mean, 0.255, is used",
        ),
    ],
)
def test_an_implausible_resolution_gives_a_warning(
    mpp_xy: tuple[float, float], objective: float | None, expected: str
) -> None:
    [warning] = resolve(mpp_xy, objective).warnings
    assert expected in warning
    assert "not square" in expected or "--mpp-of" in warning


def test_a_plausible_resolution_gives_no_warning() -> None:
    for mpp_xy, objective in [
        ((0.25, 0.252), 40),
        ((0.499, 0.499), 20),
        ((0.35, 0.35), 40),
        ((1.0, 1.0), None),
    ]:
        assert resolve(mpp_xy, objective).warnings == ()


def test_warnings_about_the_resolution_reach_the_slide(tmp_path: Path) -> None:
    slide = open_slide(
        write_svs(tmp_path / "a.svs", [rendered(ramp, (90, 70))], mpp=2.5, objective=40)
    )
    assert "10 times too large?" in slide.warnings[0]
    assert "contradicts the objective x40" in open_slide(slide.path, mpp=25.0).warnings[0]
