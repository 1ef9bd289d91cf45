from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from work_folders import SETTINGS, cohort, empty_files, listed, mean_colour, picture

from scmil.bags.hdf5 import read_bag
from scmil.encoding.cohort import (
    Source,
    bags_folder,
    encode_slides,
    find_cohort,
    read_mpp,
    read_settings,
    read_sources,
    tile_slides,
)
from scmil.errors import DataError, OptionError


def test_slides_are_found_at_any_depth_and_other_files_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_files(tmp_path / "in", "b.svs", "deep/er/a.1.ndpi", "notes.txt", ".hidden.svs")
    monkeypatch.chdir(tmp_path)
    assert find_cohort("in") == [
        Source("b", tmp_path / "in/b.svs"),
        Source("a.1", tmp_path / "in/deep/er/a.1.ndpi"),
    ]  # absolute paths, which do not depend on the current directory


def test_a_single_slide_is_a_cohort(tmp_path: Path) -> None:
    path = empty_files(tmp_path, "a.svs", "b.svs") / "a.svs"
    assert find_cohort(path) == [Source("a", path)]


def test_a_folder_with_one_dicom_series_is_a_slide_named_like_the_folder(
    tmp_path: Path,
) -> None:
    empty_files(tmp_path, "study.v2/1.dcm", "study.v2/2.dcm")
    assert find_cohort(tmp_path) == [Source("study.v2", tmp_path / "study.v2")]


@pytest.mark.parametrize("mpp", [0.25, 1])
def test_mpp_can_be_given_for_all_slides(tmp_path: Path, mpp: float) -> None:
    assert [source.mpp for source in find_cohort(empty_files(tmp_path, "a.svs", "b.svs"), mpp)] == [
        mpp,
        mpp,
    ]


def test_mpp_can_be_given_for_some_slides_by_a_table(tmp_path: Path) -> None:
    slides = empty_files(tmp_path / "slides", "a.svs", "b.ome.tif", "c.svs")
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\nelsewhere/a.svs,0.25\nb.ome.tif,0.5\n")
    assert {source.id: source.mpp for source in find_cohort(slides, table)} == {
        "a": 0.25,
        "b.ome": 0.5,
        "c": None,
    }
    assert find_cohort(slides, str(table)) == find_cohort(slides, table)


def test_an_mpp_table_with_unknown_slides_is_rejected(tmp_path: Path) -> None:
    slides = empty_files(tmp_path / "slides", "a.svs")
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\na,0.25\n" + "".join(f"x{i},0.25\n" for i in range(5)))
    with pytest.raises(
        DataError, match=r"names 5 slides that are not in .*: x0, x1, x2 and 2 more"
    ):
        find_cohort(slides, table)


@pytest.mark.parametrize("number", ["", "x40", "0", "-0.5", "nan", "inf", "0,5"])
def test_an_invalid_mpp_is_rejected_with_its_line(tmp_path: Path, number: str) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text(f"slide;mpp\na;0.25\nb;{number}\n")
    with pytest.raises(DataError, match=f"line 3: mpp = '{number}'; expected a positive number"):
        read_mpp(table)


@pytest.mark.parametrize("header", ["slide,microns", "name,mpp"])
def test_an_mpp_table_without_its_columns_is_rejected(tmp_path: Path, header: str) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text(f"{header}\na,0.25\n")
    with pytest.raises(DataError, match=r"mpp\.csv: no column"):
        read_mpp(table)


def test_a_folder_without_slides_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no slides: no file has a slide suffix"):
        find_cohort(empty_files(tmp_path, "notes.txt"))
    with pytest.raises(DataError, match=r"nowhere: no such file or folder"):
        find_cohort(tmp_path / "nowhere")


def test_slides_csv_stores_any_name(tmp_path: Path) -> None:
    names = ['co,mma "quoted"', "ünï", "per%cent", "li\nne"]
    sources = [Source(name, picture(tmp_path / "slides" / f"{name}.png"), 0.5) for name in names]
    sources[0] = sources[0]._replace(mpp=None)
    work = tmp_path / "work"
    assert tile_slides(sources, work, SETTINGS).done == tuple(names[1:])  # the first has no mpp
    assert listed(work) == sources
    assert encode_slides(work, mean_colour()).done == tuple(names[1:])
    assert {read_bag(path).id for path in bags_folder(work, "mean").glob("*.h5")} == set(names[1:])


def test_a_work_folder_rejects_other_settings(tmp_path: Path) -> None:
    sources, work = cohort(tmp_path), tmp_path / "work"
    tile_slides(sources, work, SETTINGS)
    with pytest.raises(
        OptionError,
        match=r"mpp = 0\.5 before, 1\.0 now, size_px = 100 before, 64 now\. Use another",
    ):
        tile_slides(sources, work, replace(SETTINGS, mpp=1.0, size_px=64))
    with pytest.raises(OptionError, match="preset = 'biopsy' before, 'default' now"):
        tile_slides(sources, work, replace(SETTINGS, preset="default"))
    assert read_settings(work) == SETTINGS


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"size_px": '])
def test_unreadable_settings_are_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "tiling.json").write_text(content)
    with pytest.raises(
        DataError, match=r"tiling\.json does not contain the settings of this folder"
    ):
        tile_slides(cohort(tmp_path), tmp_path, SETTINGS)
    with pytest.raises(DataError, match=r"tiling\.json does not contain tiling settings"):
        read_settings(tmp_path)


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_was_not_tiled_is_rejected_and_stays_unchanged(
    tmp_path: Path, exists: bool
) -> None:
    folder = tmp_path / "slides"
    if exists:
        folder.mkdir()
    with pytest.raises(
        DataError, match=r"has no slides\.csv.*Run this first: scmil tile SLIDES --out"
    ):
        encode_slides(folder, mean_colour())
    assert folder.exists() == exists
    assert not list(tmp_path.rglob("bags"))


@pytest.mark.parametrize(
    "content", ["name,file\na,b\n", "slide,path,mpp\na,a.png,fine\n", "slide,path,mpp\na\n"]
)
def test_a_damaged_slides_csv_is_rejected(work: Path, content: str) -> None:
    (work / "slides.csv").write_text(content)
    with pytest.raises(
        DataError, match=r"slides\.csv is not a table with the columns slide,path,mpp"
    ):
        encode_slides(work, mean_colour())


def test_a_slide_with_two_mpp_values_is_rejected(tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\na.svs,0.25\na.svs,0.5\n")
    with pytest.raises(
        DataError, match=r"line 3: slide 'a' has mpp 0.5 here and 0.25 in an earlier line"
    ):
        read_mpp(table)


def test_a_slides_csv_with_an_unclosed_quote_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "slides.csv").write_text('slide,path,mpp\n"' + "a" * 200_000)
    with pytest.raises(
        DataError, match=r"slides\.csv is not a table with the columns slide,path,mpp"
    ):
        read_sources(tmp_path)


def test_a_slides_csv_with_a_repeated_name_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "slides.csv").write_text("slide,path,mpp\na,a.svs,\na,b.svs,\n")
    with pytest.raises(DataError, match="slide 'a' is listed twice"):
        read_sources(tmp_path)


def test_a_table_with_an_empty_name_is_rejected_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "slides.csv").write_text("slide,path,mpp\n,a.svs,0.5\n")
    with pytest.raises(DataError, match=r"slides\.csv .*a slide has an empty name"):
        read_sources(tmp_path)
