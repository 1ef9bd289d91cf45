"""`--mpp-of` fills in missing resolutions; only `--override-mpp` replaces those of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from work_folders import SETTINGS, causes, mean_colour, picture

from scmil.cli import app
from scmil.encoding.cohort import (
    Source,
    encode_slides,
    find_cohort,
    read_sources,
    tile_slides,
    tiles_file,
    tissue_file,
)
from scmil.errors import OptionError
from scmil.slides.tile_files import read_tiling

Image = pytest.importorskip("PIL.Image")
INCH_UM = 25_400


def slides_with_and_without_mpp(folder: Path, mpp: float = 0.5) -> Path:
    """`states.png` states its resolution, `silent.png` does not."""
    picture(folder / "silent.png")
    path = picture(folder / "states.png")
    Image.open(path).save(path, dpi=(INCH_UM / mpp, INCH_UM / mpp))
    return folder


def slide_mpp(work: Path, name: str) -> float:
    return read_tiling(tiles_file(work, name)).slide_mpp


def run_tile(slides: Path, work: Path, *options: str) -> Result:
    settings = ["--size", "100", "--preset", "biopsy", "--no-pen"]
    return CliRunner().invoke(app, ["tile", str(slides), "--out", str(work), *settings, *options])


def test_a_given_mpp_fills_gaps_only(tmp_path: Path) -> None:
    slides, work = slides_with_and_without_mpp(tmp_path / "slides"), tmp_path / "work"
    outcome = tile_slides(find_cohort(slides, 0.25), work, SETTINGS)
    assert outcome.done == ("silent", "states")
    assert slide_mpp(work, "silent") == 0.25
    assert slide_mpp(work, "states") == pytest.approx(0.5, rel=1e-3)


def test_a_row_of_a_table_fills_gaps_only(tmp_path: Path) -> None:
    slides, work = slides_with_and_without_mpp(tmp_path / "slides"), tmp_path / "work"
    (tmp_path / "mpp.csv").write_text("slide,mpp\nsilent,0.25\nstates,0.25\n")
    tile_slides(find_cohort(slides, tmp_path / "mpp.csv"), work, SETTINGS)
    assert slide_mpp(work, "silent") == 0.25
    assert slide_mpp(work, "states") == pytest.approx(0.5, rel=1e-3)


def test_tiles_of_a_slide_that_states_its_mpp_are_kept_when_an_mpp_is_given_later(
    tmp_path: Path,
) -> None:
    slides, work = slides_with_and_without_mpp(tmp_path / "slides"), tmp_path / "work"
    tile_slides(find_cohort(slides / "states.png"), work, SETTINGS)
    before = tiles_file(work, "states").read_bytes()
    outcome = tile_slides(find_cohort(slides, 0.25), work, SETTINGS)
    assert (outcome.done, outcome.kept) == (("silent",), ("states",))
    assert tiles_file(work, "states").read_bytes() == before


def test_the_mpp_of_files_is_replaced_on_request(tmp_path: Path) -> None:
    slides, work = slides_with_and_without_mpp(tmp_path / "slides"), tmp_path / "work"
    tile_slides(find_cohort(slides, 0.25), work, SETTINGS)
    overriding = find_cohort(slides, 0.25, override_mpp=True)
    outcome = tile_slides(overriding, work, SETTINGS)
    assert (outcome.done, outcome.kept) == (("states",), ("silent",))
    assert slide_mpp(work, "states") == 0.25
    assert encode_slides(work, mean_colour()).done == ("silent", "states")
    assert tile_slides(overriding, work, SETTINGS).kept == ("silent", "states")


@pytest.mark.parametrize("given", [0.25, None])
def test_the_mpp_of_the_file_returns_when_it_is_no_longer_replaced(
    tmp_path: Path, given: float | None
) -> None:
    slide = slides_with_and_without_mpp(tmp_path / "slides") / "states.png"
    work = tmp_path / "work"
    tile_slides(find_cohort(slide, 0.25, override_mpp=True), work, SETTINGS)
    assert tile_slides(find_cohort(slide, given), work, SETTINGS).done == ("states",)
    assert slide_mpp(work, "states") == pytest.approx(0.5, rel=1e-3)
    assert encode_slides(work, mean_colour()).done == ("states",)


def test_another_given_mpp_tiles_a_silent_slide_again(tmp_path: Path) -> None:
    slide = slides_with_and_without_mpp(tmp_path / "slides") / "silent.png"
    tile_slides(find_cohort(slide, 0.25), tmp_path / "work", SETTINGS)
    assert tile_slides(find_cohort(slide, 0.5), tmp_path / "work", SETTINGS).done == ("silent",)
    assert slide_mpp(tmp_path / "work", "silent") == 0.5


def test_the_table_of_slides_records_what_replaces_the_file(tmp_path: Path) -> None:
    slides, work = slides_with_and_without_mpp(tmp_path / "slides"), tmp_path / "work"
    tile_slides(find_cohort(slides / "silent.png", 0.25), work, SETTINGS)
    tile_slides(find_cohort(slides / "states.png", 0.3, override_mpp=True), work, SETTINGS)
    sources = {source.id: (source.mpp, source.override_mpp) for source in read_sources(work)}
    assert sources == {"silent": (0.25, False), "states": (0.3, True)}


def test_in_tables_of_earlier_versions_a_given_mpp_replaces_that_of_the_file(
    tmp_path: Path,
) -> None:
    slide = slides_with_and_without_mpp(tmp_path / "slides") / "states.png"
    work = tmp_path / "work"
    tile_slides(find_cohort(slide, 0.25, override_mpp=True), work, SETTINGS)
    (work / "slides.csv").write_text(f"slide,path,mpp,times\nstates,{slide},0.25,\n")
    assert read_sources(work) == [Source("states", slide, 0.25, override_mpp=True)]
    assert encode_slides(work, mean_colour()).done == ("states",)


def test_tables_without_a_given_mpp_have_the_columns_of_earlier_versions(tmp_path: Path) -> None:
    slide = slides_with_and_without_mpp(tmp_path / "slides") / "states.png"
    tile_slides(find_cohort(slide), tmp_path / "work", SETTINGS)
    header = (tmp_path / "work" / "slides.csv").read_text().splitlines()[0]
    assert header == "slide,path,mpp,times"


def test_the_command_prints_a_line_for_each_replaced_resolution(tmp_path: Path) -> None:
    slides, work = slides_with_and_without_mpp(tmp_path / "slides"), tmp_path / "work"
    result = run_tile(slides, work, "--mpp-of", "0.25", "--override-mpp")
    assert result.exit_code == 0
    assert "states: 0.25 microns per pixel replace 0.5 of the file" in result.stderr
    assert "silent" not in result.stderr.replace("done: silent", "")
    again = run_tile(slides, work, "--mpp-of", "0.25", "--override-mpp")  # also if it is kept
    assert "states: 0.25 microns per pixel replace 0.5 of the file" in again.stderr


def test_the_command_names_the_slides_for_which_the_given_mpp_is_not_used(tmp_path: Path) -> None:
    slides = slides_with_and_without_mpp(tmp_path / "slides")
    result = run_tile(slides, tmp_path / "work", "--mpp-of", "0.25")
    line = "states: --mpp-of 0.25 is not used, because the file states 0.5 microns per pixel"
    assert line in result.stderr
    assert "--override-mpp" in result.stderr
    same = run_tile(slides, tmp_path / "same", "--mpp-of", "0.5")
    assert "is not used" not in same.stderr


@pytest.mark.parametrize("value", [0.0, -0.25, float("nan"), float("inf")])
def test_an_impossible_value_is_rejected_before_any_work(tmp_path: Path, value: float) -> None:
    slides = slides_with_and_without_mpp(tmp_path / "slides")
    with pytest.raises(OptionError, match="expected a positive number of microns per pixel"):
        find_cohort(slides, value)


def test_info_uses_a_given_mpp_as_tile_does(tmp_path: Path) -> None:
    slide = slides_with_and_without_mpp(tmp_path / "slides") / "states.png"
    for options, mpp in (([], 0.5), (["--override-mpp"], 0.25)):
        result = CliRunner().invoke(
            app, ["info", str(slide), "--mpp-of", "0.25", "--json", *options]
        )
        assert json.loads(result.stdout)["mpp"] == pytest.approx(mpp, rel=1e-3)


def test_override_mpp_needs_a_value(tmp_path: Path) -> None:
    slides = slides_with_and_without_mpp(tmp_path / "slides")
    result = run_tile(slides, tmp_path / "work", "--override-mpp")
    assert result.exit_code != 0
    assert "--override-mpp needs --mpp-of" in str(result.exception)


# -------------------------------------------------------------------------- implausible resolutions


def test_an_implausible_resolution_is_named_as_the_cause_of_missing_tiles(tmp_path: Path) -> None:
    slides = slides_with_and_without_mpp(tmp_path / "slides", mpp=0.00499)
    work, [source] = tmp_path / "work", find_cohort(slides / "states.png")
    assert tile_slides([source], work, SETTINGS).failed == ("states",)
    cause = causes(work)["states", "tile"]
    assert "the file states 0.00499 microns per pixel" in cause
    assert "implausible" in cause
    assert "between 0.05 and 5" in cause
    assert "--mpp-of" in cause
    assert "--override-mpp --retry-failed" in cause


def test_the_remedy_for_an_implausible_resolution_works(tmp_path: Path) -> None:
    slides = slides_with_and_without_mpp(tmp_path / "slides", mpp=0.00499)
    work, slide = tmp_path / "work", slides / "states.png"
    tile_slides(find_cohort(slide), work, SETTINGS)
    assert not tissue_file(work, "states").exists()  # it was searched at a wrong scale
    right = find_cohort(slide, 0.5, override_mpp=True)
    assert tile_slides(right, work, SETTINGS, retry_failed=True).done == ("states",)
    assert len(read_tiling(tiles_file(work, "states"))) == 6


def test_a_given_value_that_is_implausible_is_named_as_given(tmp_path: Path) -> None:
    work, path = tmp_path / "work", picture(tmp_path / "a.png")
    assert tile_slides(find_cohort(path, 0.00499), work, SETTINGS).failed == ("a",)
    assert "0.00499 microns per pixel were given" in causes(work)["a", "tile"]


def test_a_plausible_resolution_is_not_named_as_the_cause(tmp_path: Path) -> None:
    work, path = tmp_path / "work", picture(tmp_path / "a.png", size=(50, 50))
    tile_slides(find_cohort(path, 0.5), work, SETTINGS)
    assert "implausible" not in causes(work)["a", "tile"]
