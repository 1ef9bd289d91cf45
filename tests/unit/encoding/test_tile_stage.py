from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
from work_folders import (
    GLASS,
    SETTINGS,
    causes,
    cohort,
    draw_outlines,
    empty_files,
    listed,
    picture,
)

from scmil.encoding.cohort import (
    Source,
    find_cohort,
    read_settings,
    read_sources,
    tile_slides,
    tiled_slides,
    tiles_file,
    tissue_file,
)
from scmil.errors import OutputError


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_broken_link_fails_and_the_other_slides_are_tiled(
    tmp_path: Path,
) -> None:
    picture(tmp_path / "slides" / "a.png")
    (tmp_path / "slides" / "b.svs").symlink_to(tmp_path / "unmounted" / "b.svs")
    outcome = tile_slides(find_cohort(tmp_path / "slides", 0.5), tmp_path / "work", SETTINGS)
    assert (outcome.done, outcome.failed) == (("a",), ("b",))
    assert "which does not exist. Mount the disk" in causes(tmp_path / "work")["b", "tile"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_the_command_exits_with_1_if_a_slide_is_missing(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from scmil.cli import app

    picture(tmp_path / "slides" / "a.png")
    (tmp_path / "slides" / "b.svs").symlink_to(tmp_path / "unmounted" / "b.svs")
    arguments = [
        "tile",
        tmp_path / "slides",
        "--out",
        tmp_path / "work",
        "--mpp-of",
        0.5,
        "--size",
        64,
        "--preset",
        "biopsy",
    ]
    result = CliRunner().invoke(app, [*map(str, arguments), "--no-pen"])
    assert result.exit_code == 1
    assert "1 made, 0 kept, 1 failed" in result.output


def test_tiling_writes_outlines_tiles_and_a_preview_per_slide(tmp_path: Path) -> None:
    events: list[tuple[str, str]] = []
    outcome = tile_slides(
        cohort(tmp_path), tmp_path / "work", SETTINGS, on_slide=lambda *event: events.append(event)
    )
    assert outcome.done == ("a", "b")
    assert events == [("a", "done"), ("b", "done")]
    made = {
        str(path.relative_to(tmp_path / "work")) for path in (tmp_path / "work").rglob("[!.]*.*")
    }
    each = {
        f"{folder}/{name}.{end}"
        for name in "ab"
        for folder, end in (("tissue", "geojson"), ("tiles", "h5"), ("tiles", "jpg"))
    }
    assert {path for path in made if not path.endswith(".lock")} == {
        "slides.csv",
        "tiling.json",
        *each,
    }
    with h5py.File(tiles_file(tmp_path / "work", "a")) as file:
        assert file["coords"][()].tolist() == [[x, y] for y in (0, 100) for x in (0, 100, 200)]
    assert read_settings(tmp_path / "work") == SETTINGS


def test_a_second_run_keeps_finished_slides_and_lists_those_of_both_runs(
    tmp_path: Path,
) -> None:
    work, (a, b, c) = tmp_path / "work", cohort(tmp_path, "abc")
    tile_slides([a, b], work, SETTINGS)
    events: list[tuple[str, str]] = []
    outcome = tile_slides([b, c], work, SETTINGS, on_slide=lambda *event: events.append(event))
    assert (outcome.kept, outcome.done) == (("b",), ("c",))
    assert events == [("b", "kept"), ("c", "done")]
    assert listed(work) == [a, b, c]
    moved = b._replace(path=shutil.copy(b.path, tmp_path / "b.png"))
    tile_slides([moved], work, SETTINGS)
    assert listed(work) == [a, moved, c]


def test_slides_with_the_same_name_fail_and_the_others_are_tiled(tmp_path: Path) -> None:
    twins = [Source("same", picture(tmp_path / folder / "same.png"), 0.5) for folder in "xy"]
    work, events = tmp_path / "work", []
    outcome = tile_slides(
        [*twins, *cohort(tmp_path, "a")],
        work,
        SETTINGS,
        on_slide=lambda *event: events.append(event),
    )
    assert (outcome.done, outcome.failed) == (("a",), ("same",))
    assert events == [("a", "done"), ("same", "failed")]
    assert "2 slides have the name 'same'" in causes(work)["same", "tile"]
    assert [source.id for source in read_sources(work)] == ["a"]


def test_a_stain_that_looks_like_ink_is_named_with_its_remedy(tmp_path: Path) -> None:
    work = tmp_path / "work"
    blue = Source("blue", picture(tmp_path / "blue.png", colour=(60, 150, 160)), 0.5)
    assert tile_slides([blue], work, replace(SETTINGS, pen=True)).failed == ("blue",)
    cause = causes(work)["blue", "tile"]
    assert "are those of marker ink. If nothing is marked, use --no-pen in a new folder" in cause
    assert tile_slides([blue], tmp_path / "new", SETTINGS).done == ("blue",)  # without pen


def test_a_slide_without_tissue_fails_until_tissue_is_drawn(
    tmp_path: Path,
) -> None:
    work, source = (
        tmp_path / "work",
        Source("glass", picture(tmp_path / "glass.png", colour=GLASS), 0.5),
    )
    assert tile_slides([source], work, SETTINGS).failed == ("glass",)
    assert "no tissue was found with the preset 'biopsy'" in causes(work)["glass", "tile"]
    assert str(tissue_file(work, "glass")) in causes(work)["glass", "tile"]
    assert tiled_slides(work) == []
    draw_outlines(work, "glass", (200, 100))
    # Logged as failed: not tried again without retry_failed.
    assert tile_slides([source], work, SETTINGS).failed == ("glass",)
    assert tile_slides([source], work, SETTINGS, retry_failed=True).done == ("glass",)
    assert [one._replace(times=None) for one in tiled_slides(work)] == [source]


def test_tissue_smaller_than_a_tile_is_reported(tmp_path: Path) -> None:
    work = tmp_path / "work"
    draw_outlines(work, "a", (50, 50))
    assert tile_slides(cohort(tmp_path, "a"), work, SETTINGS).failed == ("a",)
    assert (
        "contains no tile of 100 px at 0.5 µm per pixel with at least 50% tissue"
        in causes(work)["a", "tile"]
    )


def test_a_folder_with_files_of_other_programs_is_rejected(tmp_path: Path) -> None:
    for name in ("slides.csv", "tiles/a.jpg"):
        work = tmp_path / name.replace("/", "-")
        empty_files(work, name)
        with pytest.raises(OutputError, match="exists, and was not written by scmil tile"):
            tile_slides(cohort(tmp_path), work, SETTINGS)
        assert [path.name for path in work.iterdir()] == [name.partition("/")[0]]
