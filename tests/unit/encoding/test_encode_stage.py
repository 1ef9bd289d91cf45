from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner
from work_folders import (
    PINK,
    SETTINGS,
    bag_of,
    causes,
    cohort,
    draw_outlines,
    empty_files,
    mean_colour,
    picture,
)

from scmil.bags.hdf5 import write_bag
from scmil.cli import app
from scmil.core.jobs.resume import JobOutcome
from scmil.encoding import work_folder
from scmil.encoding.cohort import (
    EncodeSettings,
    Source,
    bags_folder,
    encode_slides,
    read_sources,
    tile_slides,
    tiled_slides,
    tiles_file,
    tissue_file,
)
from scmil.encoding.dispatch import Job, OnSlide
from scmil.encoding.encoders import Encoder
from scmil.errors import OptionError, OutputError


def test_every_slide_with_tiles_is_encoded_once(work: Path) -> None:
    slides: list[tuple[str, str]] = []
    tiles: list[tuple[str, int, int]] = []
    settings = EncodeSettings(batch=4)
    callbacks = dict(
        on_slide=lambda *event: slides.append(event),
        on_tiles=lambda *event: tiles.append(event),
    )
    assert encode_slides(work, mean_colour(), settings, **callbacks).done == ("a", "b")
    assert slides == [("a", "done"), ("b", "done")]
    assert tiles == [("a", 4, 6), ("a", 6, 6), ("b", 4, 6), ("b", 6, 6)]
    bag = bag_of(work, "a")
    np.testing.assert_allclose(bag.features, np.tile(np.array(PINK) / 255, (6, 1)), atol=5e-4)
    assert (bag.id, bag.provenance["encoder"], bag.provenance["mpp_source"]) == (
        "a",
        "mean",
        "given",
    )
    assert encode_slides(work, mean_colour(), settings, **callbacks).kept == ("a", "b")
    assert slides[2:] == [("a", "kept"), ("b", "kept")]


def test_only_the_named_slides_are_encoded(work: Path) -> None:
    assert [source.id for source in tiled_slides(work, ["b", "unknown"])] == ["b"]
    assert encode_slides(work, mean_colour(), only=["b"]).done == ("b",)
    assert not (bags_folder(work, "mean") / "a.h5").exists()
    assert encode_slides(work, mean_colour(), only=[]).done == ()


def test_bags_of_two_scales_have_their_own_folder(work: Path) -> None:
    tiles: list[tuple[str, int, int]] = []
    encode_slides(work, mean_colour())
    assert encode_slides(
        work,
        mean_colour(),
        EncodeSettings(scales=2),
        only=["a"],
        on_tiles=lambda *event: tiles.append(event),
    ).done == ("a",)
    assert tiles == [("a", 1, 7), ("a", 7, 7)]  # the parent, then its six tiles
    assert bags_folder(work, "mean", scales=2) == work / "bags" / "mean-two-scales"
    assert bag_of(work, "a").features.shape == (6, 3)
    assert bag_of(work, "a", scales=2).features.shape == (6, 6)


def test_encoder_names_cannot_leave_the_folder_of_bags(work: Path) -> None:
    assert bags_folder(work, "timm:hf-hub:a/b").parent == work / "bags"
    assert encode_slides(work, mean_colour(name="../mean")).done == ("a", "b")
    assert len(list((work / "bags").glob("*/*.h5"))) == 2


@pytest.mark.parametrize(
    ("encoder", "options", "message"),
    [
        (mean_colour(digest="other"), {}, "encoder_digest = 'digest' before, 'other' now"),
        (mean_colour(), {"dtype": "float32"}, "dtype = 'float16' before, 'float32' now"),
    ],
)
def test_a_folder_of_bags_does_not_mix_features(
    work: Path, encoder: Encoder, options: dict[str, str], message: str
) -> None:
    encode_slides(work, mean_colour(), only=["a"])
    with pytest.raises(OptionError, match=message):
        encode_slides(work, encoder, EncodeSettings(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"), [({"dtype": "float64"}, "float64"), ({"scales": 3}, "scales = 3")]
)
def test_invalid_settings_are_rejected_before_anything_is_written(
    work: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        encode_slides(work, mean_colour(), EncodeSettings(**options))
    assert not (work / "bags").exists()
    assert causes(work) == {}


def test_features_too_large_for_float16_fail_with_a_remedy(work: Path) -> None:
    large = mean_colour(std=(1e-6, 1.0, 1.0))
    assert encode_slides(work, large).failed == ("a", "b")
    assert "Use float32" in causes(work)["a", "encode mean"]
    assert encode_slides(
        work, mean_colour(name="other", std=(1e-6, 1.0, 1.0)), EncodeSettings(dtype="float32")
    ).done == ("a", "b")


def modification_times(work: Path) -> dict[str, int]:
    """The time of each file of tiles and features."""
    return {str(path.relative_to(work)): path.stat().st_mtime_ns for path in work.rglob("[!.]*.h5")}


def changed_files(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in after if after[name] != before.get(name)}


def files_of_second_run(work: Path, sources: list[Source]) -> set[str]:
    """The files that a second run of both stages writes."""
    before = modification_times(work)
    tile_slides(sources, work, SETTINGS)
    encode_slides(work, mean_colour())
    return changed_files(before, modification_times(work))


def test_a_second_run_of_both_stages_writes_nothing(work: Path) -> None:
    encode_slides(work, mean_colour())
    assert files_of_second_run(work, read_sources(work)) == set()


def test_a_slide_with_edited_outlines_is_tiled_and_encoded_again(work: Path) -> None:
    encode_slides(work, mean_colour())
    draw_outlines(work, "a", (100, 200))
    assert files_of_second_run(work, read_sources(work)) == {"tiles/a.h5", "bags/mean/a.h5"}
    bag = bag_of(work, "a")
    assert bag.xy is not None
    assert bag.xy.tolist() == [[0, 0], [0, 100]]
    assert files_of_second_run(work, read_sources(work)) == set()


def test_a_slide_with_another_mpp_is_tiled_and_encoded_again(work: Path) -> None:
    encode_slides(work, mean_colour())
    a, b = read_sources(work)
    assert files_of_second_run(work, [a._replace(mpp=0.25), b]) == {"tiles/a.h5", "bags/mean/a.h5"}
    bag = bag_of(work, "a")
    assert (bag.provenance["slide_mpp"], bag.provenance["side_level0"]) == (0.25, 200.0)
    assert len(bag.features) == 1  # 300 x 200 pixels have room for one of 200 x 200


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_content(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["something"] = [1, 2]


@pytest.mark.parametrize("damage", [truncate, empty, replace_content])
def test_damaged_files_are_computed_again(work: Path, damage: Callable[[Path], None]) -> None:
    encode_slides(work, mean_colour())
    damage(tiles_file(work, "a"))
    damage(bags_folder(work, "mean") / "b.h5")
    assert files_of_second_run(work, read_sources(work)) >= {"tiles/a.h5", "bags/mean/b.h5"}
    assert causes(work) == {}
    assert [len(bag_of(work, name).features) for name in "ab"] == [6, 6]


def test_a_bag_of_outdated_tiles_is_encoded_again_and_the_others_are_kept(work: Path) -> None:
    encode_slides(work, mean_colour())
    old = bag_of(work, "a")
    provenance = {**old.provenance, "tiles_digest": "of earlier tiles"}
    write_bag(
        replace(old, features=old.features[:2], xy=None, provenance=provenance),
        bags_folder(work, "mean") / "a.h5",
    )
    outcome = encode_slides(work, mean_colour())
    assert (outcome.done, outcome.kept) == (("a",), ("b",))
    assert len(bag_of(work, "a").features) == 6


def test_a_slide_of_another_size_is_rejected_until_it_is_tiled_again(work: Path) -> None:
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


def test_a_slide_with_another_mpp_than_its_tiles_is_rejected(work: Path) -> None:
    with (work / "slides.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    rows[1][2] = "0.25"  # by hand, without tiling again
    with (work / "slides.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert encode_slides(work, mean_colour()).failed == ("a",)
    assert (
        "has 0.25 microns per pixel, but 0.5 when it was tiled" in causes(work)["a", "encode mean"]
    )


def test_a_missing_slide_fails_and_the_others_are_encoded(work: Path) -> None:
    read_sources(work)[0].path.unlink()
    outcome = encode_slides(work, mean_colour())
    assert (outcome.done, outcome.failed, outcome.bugs) == (("b",), ("a",), ())
    assert "a.png" in causes(work)["a", "encode mean"]


def test_bags_of_other_programs_are_not_replaced(tmp_path: Path) -> None:
    work = tmp_path / "work"
    tile_slides(cohort(tmp_path), work, SETTINGS)
    other = empty_files(bags_folder(work, "mean"), "a.h5") / "a.h5"
    with pytest.raises(OutputError, match=r"a\.h5 exists, and was not written by scmil encode"):
        encode_slides(work, mean_colour())
    assert other.exists()


def test_an_encoder_that_cannot_be_moved_to_its_device_ends_the_run(work: Path) -> None:
    """It is an error of the run, not of each slide."""

    def dispatch(job: Job, on_slide: OnSlide | None) -> JobOutcome:
        return job.run(on_slide)

    with pytest.raises(RuntimeError, match="nowhere"):
        encode_slides(work, mean_colour(), dispatch=dispatch, device="nowhere")
    assert causes(work) == {}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the folder of slides was searched and slides.csv was read."""
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        function = getattr(work_folder, name)

        def counted(*arguments: Any) -> Any:
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(work_folder, name, counted)

    count("find_slides")
    count("read_sources")
    return counts


def test_the_command_searches_the_slides_and_reads_the_list_once(
    tmp_path: Path, calls: Counter[str]
) -> None:
    cohort(tmp_path)
    options = ["--random", "0", "--size", "64", "--preset", "biopsy", "--no-pen", "--mpp-of", "0.5"]
    arguments = [str(tmp_path / "slides"), "--out", str(tmp_path / "work"), *options]
    result = CliRunner().invoke(app, ["encode", *arguments])
    assert result.exit_code == 0, result.output
    assert calls == {"find_slides": 1, "read_sources": 1}
    calls.clear()
    result = CliRunner().invoke(app, ["encode", str(tmp_path / "work"), "--random", "0"])
    assert "0 made, 2 kept, 0 failed" in result.output
    assert calls == {"read_sources": 1}
