from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from scmil.bags.hdf5 import read_bag, write_bag
from scmil.bags.bag import Bag
from scmil.encoding.cohort import (Source, TileSettings, bags_folder, encode_slides, find_cohort, read_mpp, read_settings, read_sources, tile_slides, tiled_slides, tiles_file, tissue_file)
from scmil.encoding.encoders import Encoder
from scmil.errors import DataError, OptionError, OutputError
from scmil.slides import slide_digest
from scmil.core.jobs.work import Ledger

pytest.importorskip("shapely")
Image = pytest.importorskip("PIL.Image")

PINK, GLASS = (200, 80, 160), (250, 250, 250)
SETTINGS = TileSettings(size_px=100, mpp=0.5, min_tissue=0.5, preset="biopsy", pen=False)


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def mean_colour(**change: Any) -> Encoder:
    encoder = Encoder("mean", 3, Mean(), "digest", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return replace(encoder, **change)


def picture(path: Path, size: tuple[int, int] = (300, 200), colour: tuple[int, int, int] = PINK) -> Path:
    """A slide all of one colour; of the usual size it has three by two tiles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def cohort(folder: Path, names: str = "ab") -> list[Source]:
    return [Source(name, picture(folder / "slides" / f"{name}.png"), 0.5) for name in names]


def listed(work: Path) -> list[Source]:
    """The slides that a folder remembers, without their times."""
    return [source._replace(times=None) for source in read_sources(work)]


def draw_outline(work: Path, id: str, size: tuple[int, int]) -> None:
    """What a person might draw in QuPath: a box from the corner on."""
    width, height = size
    ring = [[0, 0], [width, 0], [width, height], [0, height], [0, 0]]
    path = tissue_file(work, id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))


def bag_of(work: Path, id: str, encoder: str = "mean", scales: int = 1) -> Bag:
    return read_bag(bags_folder(work, encoder, scales) / f"{id}.h5")


def causes(work: Path) -> dict[tuple[str, str], str]:
    return {(failure.slide, failure.stage): failure.cause for failure in Ledger(work).read()}


# -------------------------------------------------------------------------------------------------------- find_cohort


def empty_files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def test_slides_are_found_at_any_depth_and_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_files(tmp_path / "in", "b.svs", "deep/er/a.1.ndpi", "notes.txt", ".hidden.svs")
    monkeypatch.chdir(tmp_path)
    assert find_cohort("in") == [
        Source("b", tmp_path / "in/b.svs"),
        Source("a.1", tmp_path / "in/deep/er/a.1.ndpi"),
    ]  # and paths that hold wherever the next start is


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_to_a_disk_that_is_not_there_is_a_failure_and_the_others_are_done(tmp_path: Path) -> None:
    picture(tmp_path / "slides" / "a.png")
    (tmp_path / "slides" / "b.svs").symlink_to(tmp_path / "unmounted" / "b.svs")
    outcome = tile_slides(find_cohort(tmp_path / "slides", 0.5), tmp_path / "work", SETTINGS)
    assert (outcome.done, outcome.failed) == (("a",), ("b",))
    assert "which is not there. Mount the disk" in causes(tmp_path / "work")["b", "tile"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_the_command_ends_with_a_failure_if_a_slide_is_not_there(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from scmil.cli import app

    picture(tmp_path / "slides" / "a.png")
    (tmp_path / "slides" / "b.svs").symlink_to(tmp_path / "unmounted" / "b.svs")
    words = [
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
    said = CliRunner().invoke(app, [*map(str, words), "--no-pen"])
    assert said.exit_code == 1
    assert "1 made, 0 kept, 1 failed" in said.output


def test_one_slide_is_a_cohort(tmp_path: Path) -> None:
    path = empty_files(tmp_path, "a.svs", "b.svs") / "a.svs"
    assert find_cohort(path) == [Source("a", path)]


def test_a_folder_of_one_dicom_series_is_a_slide_with_the_folders_whole_name(tmp_path: Path) -> None:
    empty_files(tmp_path, "study.v2/1.dcm", "study.v2/2.dcm")
    assert find_cohort(tmp_path) == [Source("study.v2", tmp_path / "study.v2")]


@pytest.mark.parametrize("mpp", [0.25, 1])
def test_microns_can_be_given_for_all(tmp_path: Path, mpp: float) -> None:
    assert [source.mpp for source in find_cohort(empty_files(tmp_path, "a.svs", "b.svs"), mpp)] == [mpp, mpp]


def test_microns_can_be_given_by_a_table_for_some(tmp_path: Path) -> None:
    slides = empty_files(tmp_path / "slides", "a.svs", "b.ome.tif", "c.svs")
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\nelsewhere/a.svs,0.25\nb.ome.tif,0.5\n")
    assert {source.id: source.mpp for source in find_cohort(slides, table)} == {"a": 0.25, "b.ome": 0.5, "c": None}
    assert find_cohort(slides, str(table)) == find_cohort(slides, table)


def test_a_table_of_slides_that_are_not_there_is_refused(tmp_path: Path) -> None:
    slides = empty_files(tmp_path / "slides", "a.svs")
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\na,0.25\n" + "".join(f"x{i},0.25\n" for i in range(5)))
    with pytest.raises(DataError, match=r"names 5 slides that are not below .*: x0, x1, x2 and 2 more"):
        find_cohort(slides, table)


@pytest.mark.parametrize("number", ["", "x40", "0", "-0.5", "nan", "inf", "0,5"])
def test_microns_that_are_no_number_are_refused_with_their_line(tmp_path: Path, number: str) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text(f"slide;mpp\na;0.25\nb;{number}\n")
    with pytest.raises(DataError, match=f"line 3: mpp = '{number}', and a number of microns is needed"):
        read_mpp(table)


@pytest.mark.parametrize("header", ["slide,microns", "name,mpp"])
def test_a_table_without_the_two_columns_is_refused(tmp_path: Path, header: str) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text(f"{header}\na,0.25\n")
    with pytest.raises(DataError, match=r"mpp\.csv: no column"):
        read_mpp(table)


def test_no_slides_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no slides: no file below it has the name of a slide"):
        find_cohort(empty_files(tmp_path, "notes.txt"))
    with pytest.raises(DataError, match=r"nowhere: there is no such file or folder"):
        find_cohort(tmp_path / "nowhere")


# -------------------------------------------------------------------------------------------------------------- tiles


def test_a_slide_leaves_an_outline_tiles_and_a_picture(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    outcome = tile_slides(cohort(tmp_path), tmp_path / "work", SETTINGS, on_slide=lambda *said: told.append(said))
    assert outcome.done == ("a", "b")
    assert told == [("a", "done"), ("b", "done")]
    made = {str(path.relative_to(tmp_path / "work")) for path in (tmp_path / "work").rglob("[!.]*.*")}
    each = {
        f"{folder}/{id}.{end}"
        for id in "ab"
        for folder, end in (("tissue", "geojson"), ("tiles", "h5"), ("tiles", "jpg"))
    }
    assert {path for path in made if not path.endswith(".lock")} == {"slides.csv", "tiling.json", *each}
    with h5py.File(tiles_file(tmp_path / "work", "a")) as file:
        assert file["coords"][()].tolist() == [[x, y] for y in (0, 100) for x in (0, 100, 200)]
    assert read_settings(tmp_path / "work") == SETTINGS


def test_a_second_start_keeps_what_is_there_and_remembers_the_slides_of_the_first(tmp_path: Path) -> None:
    work, (a, b, c) = tmp_path / "work", cohort(tmp_path, "abc")
    tile_slides([a, b], work, SETTINGS)
    told: list[tuple[str, str]] = []
    outcome = tile_slides([b, c], work, SETTINGS, on_slide=lambda *said: told.append(said))
    assert (outcome.kept, outcome.done) == (("b",), ("c",))
    assert told == [("b", "kept"), ("c", "done")]
    assert listed(work) == [a, b, c]
    moved = b._replace(path=shutil.copy(b.path, tmp_path / "b.png"))
    tile_slides([moved], work, SETTINGS)
    assert listed(work) == [a, moved, c]


def test_the_list_of_slides_takes_any_name(tmp_path: Path) -> None:
    names = ['co,mma "quoted"', "ünï", "per%cent", "li\nne"]
    sources = [Source(name, picture(tmp_path / "slides" / f"{name}.png"), 0.5) for name in names]
    sources[0] = sources[0]._replace(mpp=None)
    work = tmp_path / "work"
    assert tile_slides(sources, work, SETTINGS).done == tuple(names[1:])  # the first has no microns
    assert listed(work) == sources
    assert encode_slides(work, mean_colour()).done == tuple(names[1:])
    assert {read_bag(path).id for path in bags_folder(work, "mean").glob("*.h5")} == set(names[1:])


def test_a_folder_keeps_to_the_settings_it_was_begun_with(tmp_path: Path) -> None:
    sources, work = cohort(tmp_path), tmp_path / "work"
    tile_slides(sources, work, SETTINGS)
    with pytest.raises(OptionError, match=r"mpp = 0\.5 before, 1\.0 now, size_px = 100 before, 64 now\. Take another"):
        tile_slides(sources, work, replace(SETTINGS, mpp=1.0, size_px=64))
    with pytest.raises(OptionError, match="preset = 'biopsy' before, 'default' now"):
        tile_slides(sources, work, replace(SETTINGS, preset="default"))
    assert read_settings(work) == SETTINGS


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"size_px": '])
def test_settings_that_cannot_be_read_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tiling.json").write_text(content)
    with pytest.raises(DataError, match=r"tiling\.json does not say how"):
        tile_slides(cohort(tmp_path), tmp_path, SETTINGS)
    with pytest.raises(DataError, match=r"tiling\.json does not say how the slides were tiled"):
        read_settings(tmp_path)


def test_slides_of_one_name_fail_together_and_the_others_are_done(tmp_path: Path) -> None:
    twins = [Source("same", picture(tmp_path / folder / "same.png"), 0.5) for folder in "xy"]
    work, told = tmp_path / "work", []
    outcome = tile_slides([*twins, *cohort(tmp_path, "a")], work, SETTINGS, on_slide=lambda *said: told.append(said))
    assert (outcome.done, outcome.failed) == (("a",), ("same",))
    assert told == [("a", "done"), ("same", "failed")]
    assert "2 slides are named 'same'" in causes(work)["same", "tile"]
    assert [source.id for source in read_sources(work)] == ["a"]


def test_a_slide_without_tissue_fails_with_remedies_one_of_which_is_to_draw_it(tmp_path: Path) -> None:
    work, source = tmp_path / "work", Source("glass", picture(tmp_path / "glass.png", colour=GLASS), 0.5)
    assert tile_slides([source], work, SETTINGS).failed == ("glass",)
    assert "no tissue was found with the preset 'biopsy'" in causes(work)["glass", "tile"]
    assert str(tissue_file(work, "glass")) in causes(work)["glass", "tile"]
    assert tiled_slides(work) == []
    draw_outline(work, "glass", (200, 100))
    assert tile_slides([source], work, SETTINGS).failed == ("glass",)  # told before: not tried again unasked
    assert tile_slides([source], work, SETTINGS, retry_failed=True).done == ("glass",)
    assert [one._replace(times=None) for one in tiled_slides(work)] == [source]


def test_tissue_that_is_smaller_than_a_tile_is_told(tmp_path: Path) -> None:
    work = tmp_path / "work"
    draw_outline(work, "a", (50, 50))
    assert tile_slides(cohort(tmp_path, "a"), work, SETTINGS).failed == ("a",)
    assert "has no tile of 100 px at 0.5 µm with 50% tissue" in causes(work)["a", "tile"]


def test_two_slides_at_a_time_give_the_same_as_one_after_another(tmp_path: Path) -> None:
    sources = [*cohort(tmp_path, "ab"), Source("glass", picture(tmp_path / "glass.png", colour=GLASS), 0.5)]
    outcomes, told, files = [], [], []
    for jobs in (1, 2):
        work = tmp_path / f"work{jobs}"
        said: list[tuple[str, str]] = []
        outcomes.append(
            tile_slides(sources, work, SETTINGS, jobs=jobs, on_slide=lambda *one, said=said: said.append(one))
        )
        told.append(said)
        files.append({path.name: path.read_bytes() for path in work.rglob("*") if path.suffix in (".geojson", ".jpg")})
        with h5py.File(tiles_file(work, "b")) as file:
            files[-1]["b.h5"] = file["coords"][()].tobytes() + file["fraction"][()].tobytes()
        assert list(causes(work)) == [("glass", "tile")]
    assert outcomes[0] == outcomes[1]
    assert outcomes[1].done == ("a", "b")
    assert told[0] == told[1]
    assert files[0] == files[1]


# ----------------------------------------------------------------------------------------------------------- features


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the tiles of two slides."""
    tile_slides(cohort(tmp_path), tmp_path / "work", SETTINGS)
    return tmp_path / "work"


def test_every_slide_with_tiles_becomes_a_bag_once(work: Path) -> None:
    slides: list[tuple[str, str]] = []
    tiles: list[tuple[str, int, int]] = []
    how = dict(batch=4, on_slide=lambda *said: slides.append(said), on_tiles=lambda *said: tiles.append(said))
    assert encode_slides(work, mean_colour(), **how).done == ("a", "b")
    assert slides == [("a", "done"), ("b", "done")]
    assert tiles == [("a", 4, 6), ("a", 6, 6), ("b", 4, 6), ("b", 6, 6)]
    bag = bag_of(work, "a")
    np.testing.assert_allclose(bag.features, np.tile(np.array(PINK) / 255, (6, 1)), atol=5e-4)
    assert (bag.id, bag.provenance["encoder"], bag.provenance["mpp_source"]) == ("a", "mean", "given")
    assert encode_slides(work, mean_colour(), **how).kept == ("a", "b")
    assert slides[2:] == [("a", "kept"), ("b", "kept")]


def test_only_the_named_slides_are_encoded(work: Path) -> None:
    assert [source.id for source in tiled_slides(work, ["b", "unknown"])] == ["b"]
    assert encode_slides(work, mean_colour(), only=["b"]).done == ("b",)
    assert not (bags_folder(work, "mean") / "a.h5").exists()
    assert encode_slides(work, mean_colour(), only=[]).done == ()


def test_two_scales_have_a_folder_of_their_own(work: Path) -> None:
    tiles: list[tuple[str, int, int]] = []
    encode_slides(work, mean_colour())
    assert encode_slides(work, mean_colour(), scales=2, only=["a"], on_tiles=lambda *said: tiles.append(said)).done == (
        "a",
    )
    assert tiles == [("a", 1, 7), ("a", 7, 7)]  # the parent, then its six tiles
    assert bags_folder(work, "mean", scales=2) == work / "bags" / "mean-two-scales"
    assert bag_of(work, "a").features.shape == (6, 3)
    assert bag_of(work, "a", scales=2).features.shape == (6, 6)


def test_encoders_with_odd_names_stay_in_the_folder_of_bags(work: Path) -> None:
    assert bags_folder(work, "timm:hf-hub:a/b").parent == work / "bags"
    assert encode_slides(work, mean_colour(name="../mean")).done == ("a", "b")
    assert len(list((work / "bags").glob("*/*.h5"))) == 2


@pytest.mark.parametrize(
    ("encoder", "how", "said"),
    [
        (mean_colour(digest="other"), {}, "encoder_digest = 'digest' before, 'other' now"),
        (mean_colour(), {"dtype": "float32"}, "dtype = 'float16' before, 'float32' now"),
    ],
)
def test_a_folder_of_bags_does_not_mix_features(work: Path, encoder: Encoder, how: dict[str, str], said: str) -> None:
    encode_slides(work, mean_colour(), only=["a"])
    with pytest.raises(OptionError, match=said):
        encode_slides(work, encoder, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(("how", "said"), [({"dtype": "float64"}, "float64"), ({"scales": 3}, "scales = 3")])
def test_options_that_are_unknown_are_refused_before_any_work(work: Path, how: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        encode_slides(work, mean_colour(), **how)
    assert not (work / "bags").exists()
    assert causes(work) == {}


def test_features_too_large_for_float16_fail_with_the_remedy(work: Path) -> None:
    large = mean_colour(std=(1e-6, 1.0, 1.0))
    assert encode_slides(work, large).failed == ("a", "b")
    assert "Write float32" in causes(work)["a", "encode mean"]
    assert encode_slides(work, mean_colour(name="other", std=(1e-6, 1.0, 1.0)), dtype="float32").done == ("a", "b")


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_was_not_tiled_is_refused_and_nothing_is_written_into_it(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "slides"
    if exists:
        folder.mkdir()
    with pytest.raises(DataError, match=r"has no slides\.csv.*First: scmil tile SLIDES --out"):
        encode_slides(folder, mean_colour())
    assert folder.exists() == exists
    assert not list(tmp_path.rglob("bags"))


@pytest.mark.parametrize("content", ["name,file\na,b\n", "slide,path,mpp\na,a.png,fine\n", "slide,path,mpp\na\n"])
def test_a_damaged_list_of_slides_is_refused(work: Path, content: str) -> None:
    (work / "slides.csv").write_text(content)
    with pytest.raises(DataError, match=r"slides\.csv is no table of slide,path,mpp"):
        encode_slides(work, mean_colour())


# -------------------------------------------------------------------------------------------------- what is made again


def stamps(work: Path) -> dict[str, int]:
    """When each file of tiles and features was written."""
    return {str(path.relative_to(work)): path.stat().st_mtime_ns for path in work.rglob("[!.]*.h5")}


def newer(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in after if after[name] != before.get(name)}


def again(work: Path, sources: list[Source]) -> set[str]:
    """What a second start of both stages writes."""
    before = stamps(work)
    tile_slides(sources, work, SETTINGS)
    encode_slides(work, mean_colour())
    return newer(before, stamps(work))


def test_nothing_is_made_twice(work: Path) -> None:
    encode_slides(work, mean_colour())
    assert again(work, read_sources(work)) == set()


def test_an_edited_outline_lays_the_tiles_of_its_slide_anew_and_encodes_them(work: Path) -> None:
    encode_slides(work, mean_colour())
    draw_outline(work, "a", (100, 200))
    assert again(work, read_sources(work)) == {"tiles/a.h5", "bags/mean/a.h5"}
    bag = bag_of(work, "a")
    assert bag.xy is not None
    assert bag.xy.tolist() == [[0, 0], [0, 100]]
    assert again(work, read_sources(work)) == set()


def test_other_microns_lay_the_tiles_of_a_slide_anew_and_encode_them(work: Path) -> None:
    encode_slides(work, mean_colour())
    a, b = read_sources(work)
    assert again(work, [a._replace(mpp=0.25), b]) == {"tiles/a.h5", "bags/mean/a.h5"}
    bag = bag_of(work, "a")
    assert (bag.provenance["slide_mpp"], bag.provenance["side_level0"]) == (0.25, 200.0)
    assert len(bag.features) == 1  # 300 x 200 pixels have room for one of 200 x 200


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["something"] = [1, 2]


@pytest.mark.parametrize("damage", [cut, emptied, foreign])
def test_damaged_files_are_made_again(work: Path, damage: Callable[[Path], None]) -> None:
    encode_slides(work, mean_colour())
    damage(tiles_file(work, "a"))
    damage(bags_folder(work, "mean") / "b.h5")
    assert again(work, read_sources(work)) >= {"tiles/a.h5", "bags/mean/b.h5"}
    assert causes(work) == {}
    assert [len(bag_of(work, id).features) for id in "ab"] == [6, 6]


def test_a_bag_of_other_tiles_is_made_again_and_those_of_the_same_are_kept(work: Path) -> None:
    encode_slides(work, mean_colour())
    old = bag_of(work, "a")
    provenance = {**old.provenance, "tiles_digest": "of tiles that were laid before"}
    write_bag(
        replace(old, features=old.features[:2], xy=None, provenance=provenance), bags_folder(work, "mean") / "a.h5"
    )
    outcome = encode_slides(work, mean_colour())
    assert (outcome.done, outcome.kept) == (("a",), ("b",))
    assert len(bag_of(work, "a").features) == 6


def test_a_slide_that_changed_its_size_is_refused_until_it_is_tiled_again(work: Path) -> None:
    a, _ = sources = read_sources(work)
    picture(a.path, (400, 200))
    outcome = encode_slides(work, mean_colour())
    assert (outcome.done, outcome.failed) == (("b",), ("a",))
    cause = causes(work)["a", "identity"]
    assert "a.png is not the file that the tiles and bags of 'a'" in cause
    for file in (tiles_file(work, "a"), tissue_file(work, "a")):
        assert str(file) in cause
        file.unlink()
    assert tile_slides(sources, work, SETTINGS).done == ("a",)
    assert encode_slides(work, mean_colour(), retry_failed=True).done == ("a",)
    assert len(bag_of(work, "a").features) == 8
    assert causes(work) == {}


def test_a_slide_whose_microns_are_not_those_of_its_tiles_is_refused(work: Path) -> None:
    with (work / "slides.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    rows[1][2] = "0.25"  # by hand, without tiling again
    with (work / "slides.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert encode_slides(work, mean_colour()).failed == ("a",)
    assert "has 0.25 microns per pixel, but 0.5 when it was tiled" in causes(work)["a", "encode mean"]


def test_a_slide_that_has_gone_fails_and_the_others_are_encoded(work: Path) -> None:
    read_sources(work)[0].path.unlink()
    outcome = encode_slides(work, mean_colour())
    assert (outcome.done, outcome.failed, outcome.bugs) == (("b",), ("a",), ())
    assert "a.png" in causes(work)["a", "encode mean"]


def test_a_slide_with_two_microns_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\na.svs,0.25\na.svs,0.5\n")
    with pytest.raises(DataError, match=r"line 3: slide 'a' has 0.25 above and 0.5 here"):
        read_mpp(table)


# ---------------------------------------------------------------------------------------- another slide, the same name


def test_another_slide_under_the_same_name_is_rejected_and_the_first_stays_on_record(tmp_path: Path) -> None:
    work, (first,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([first], work, SETTINGS)
    encode_slides(work, mean_colour())
    before = bag_of(work, "a").features
    other = first._replace(path=picture(tmp_path / "other" / "a.png", colour=(120, 60, 200)))
    outcome = tile_slides([other], work, SETTINGS)
    assert (outcome.kept, outcome.failed) == ((), ("a",))
    assert str(other.path) in causes(work)["a", "identity"]
    assert listed(work) == [first]
    assert torch.equal(bag_of(work, "a").features, before)


@pytest.mark.parametrize("same_times", [False, True])
def test_a_slide_that_is_replaced_between_tile_and_encode_is_not_encoded_on_the_old_tissue(
    tmp_path: Path, same_times: bool
) -> None:
    work, (a, b) = tmp_path / "work", cohort(tmp_path, "ab")
    tile_slides([a, b], work, SETTINGS)
    _replace_pixels(a.path, same_times)
    outcome = encode_slides(work, mean_colour())
    assert (outcome.done, outcome.failed) == (("b",), ("a",))


def test_a_slide_that_is_replaced_after_encode_has_no_bag_that_is_kept(tmp_path: Path) -> None:
    work, (a, b) = tmp_path / "work", cohort(tmp_path, "ab")
    tile_slides([a, b], work, SETTINGS)
    encode_slides(work, mean_colour())
    original = a.path.read_bytes()
    _replace_pixels(a.path, same_times=True)
    outcome = encode_slides(work, mean_colour())
    assert (outcome.kept, outcome.failed) == (("b",), ("a",))
    a.path.write_bytes(original)
    outcome = encode_slides(work, mean_colour())
    assert (outcome.kept, outcome.failed, causes(work)) == (("a", "b"), (), {})


def test_the_tissue_of_a_slide_is_not_used_for_the_slide_that_replaces_it(tmp_path: Path) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    _replace_pixels(a.path, same_times=False)
    tiles_file(work, "a").unlink()
    assert tile_slides([a], work, SETTINGS).failed == ("a",)
    assert f"{tissue_file(work, 'a')} was found on another slide" in causes(work)["a", "tile"]


def test_a_slide_that_was_moved_or_touched_is_still_the_same(tmp_path: Path) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    encode_slides(work, mean_colour())
    moved = a._replace(path=a.path.rename(tmp_path / "a.png"))
    moved.path.touch()
    assert tile_slides([moved], work, SETTINGS).kept == ("a",)
    assert encode_slides(work, mean_colour()).kept == ("a",)


def test_an_unchanged_slide_is_not_read_to_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    encode_slides(work, mean_colour())
    monkeypatch.setattr("scmil.encoding.cohort.slide_digest", lambda path: pytest.fail("an unchanged slide was read"))
    assert tile_slides([a], work, SETTINGS).kept == ("a",)
    assert encode_slides(work, mean_colour()).kept == ("a",)


def test_a_folder_of_an_earlier_version_is_read_with_a_note(tmp_path: Path) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    (work / "slides.csv").write_text(f"slide,path,mpp\na,{a.path},0.5\n")
    with h5py.File(tiles_file(work, "a"), "r+") as file:
        del file["coords"].attrs["slide_digest"]
    outcome = tile_slides([a], work, SETTINGS)
    assert outcome.kept == ("a",)
    assert "1 with tiles of an earlier version, which did not record their slides" in str(outcome)
    other = a._replace(path=picture(tmp_path / "other" / "a.png", colour=(120, 60, 200)))
    assert tile_slides([other], work, SETTINGS).failed == ("a",)


def test_a_bag_names_the_slide_that_it_was_made_from(tmp_path: Path) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    encode_slides(work, mean_colour())
    assert bag_of(work, "a").provenance["slide_digest"] == slide_digest(a.path)


def _replace_pixels(path: Path, same_times: bool) -> None:
    """Other pixels in a file of the same size, with the same time of change if that is asked for."""
    before, length = path.stat(), len(path.read_bytes())
    picture(path, colour=(120, 60, 200))
    content = path.read_bytes()
    path.write_bytes(content + bytes(max(length - len(content), 0)))
    if same_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# ------------------------------------------------------------------------------------------------ other people's files


def test_a_folder_with_tables_and_tiles_of_others_is_not_tiled_into(tmp_path: Path) -> None:
    for name in ("slides.csv", "tiles/a.jpg"):
        work = tmp_path / name.replace("/", "-")
        empty_files(work, name)
        with pytest.raises(OutputError, match="is there, and was not written by scmil tile"):
            tile_slides(cohort(tmp_path), work, SETTINGS)
        assert [path.name for path in work.iterdir()] == [name.partition("/")[0]]


def test_bags_of_others_are_not_deleted_by_encoding(tmp_path: Path) -> None:
    work = tmp_path / "work"
    tile_slides(cohort(tmp_path), work, SETTINGS)
    theirs = empty_files(bags_folder(work, "mean"), "a.h5") / "a.h5"
    with pytest.raises(OutputError, match=r"a\.h5 is there, and was not written by scmil encode"):
        encode_slides(work, mean_colour())
    assert theirs.exists()


def test_a_table_of_slides_with_an_open_quote_is_named(tmp_path: Path) -> None:
    (tmp_path / "slides.csv").write_text('slide,path,mpp\n"' + "a" * 200_000)
    with pytest.raises(DataError, match=r"slides\.csv is no table of slide,path,mpp"):
        read_sources(tmp_path)


def test_a_table_of_slides_that_names_one_twice_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "slides.csv").write_text("slide,path,mpp\na,a.svs,\na,b.svs,\n")
    with pytest.raises(DataError, match="slide 'a' is there twice"):
        read_sources(tmp_path)
