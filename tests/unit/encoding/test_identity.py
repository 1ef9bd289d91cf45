from __future__ import annotations

import os
from pathlib import Path

import h5py
import pytest
import torch
from work_folders import SETTINGS, bag_of, causes, cohort, listed, mean_colour, picture

from scmil.encoding.cohort import encode_slides, tile_slides, tiles_file, tissue_file
from scmil.slides import slide_digest


def test_another_slide_with_the_same_name_is_rejected_and_the_first_stays_listed(
    tmp_path: Path,
) -> None:
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
def test_a_slide_replaced_between_the_stages_is_not_encoded_with_the_old_tiles(
    tmp_path: Path, same_times: bool
) -> None:
    work, (a, b) = tmp_path / "work", cohort(tmp_path, "ab")
    tile_slides([a, b], work, SETTINGS)
    _replace_pixels(a.path, same_times)
    outcome = encode_slides(work, mean_colour())
    assert (outcome.done, outcome.failed) == (("b",), ("a",))


def test_a_slide_replaced_after_encoding_fails_until_the_original_is_back(tmp_path: Path) -> None:
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


def test_tissue_outlines_are_not_used_for_a_replaced_slide(tmp_path: Path) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    _replace_pixels(a.path, same_times=False)
    tiles_file(work, "a").unlink()
    assert tile_slides([a], work, SETTINGS).failed == ("a",)
    assert (
        f"{tissue_file(work, 'a')} contains the tissue of another slide"
        in causes(work)["a", "tile"]
    )


def test_a_moved_or_touched_slide_is_recognised(tmp_path: Path) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    encode_slides(work, mean_colour())
    moved = a._replace(path=a.path.rename(tmp_path / "a.png"))
    moved.path.touch()
    assert tile_slides([moved], work, SETTINGS).kept == ("a",)
    assert encode_slides(work, mean_colour()).kept == ("a",)


def test_an_unchanged_slide_is_compared_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    encode_slides(work, mean_colour())
    monkeypatch.setattr(
        "scmil.encoding.identity.slide_digest",
        lambda path: pytest.fail("an unchanged slide was read"),
    )
    assert tile_slides([a], work, SETTINGS).kept == ("a",)
    assert encode_slides(work, mean_colour()).kept == ("a",)


def test_a_folder_of_an_earlier_version_is_accepted_with_a_note(tmp_path: Path) -> None:
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


def test_a_bag_records_the_digest_of_its_slide(tmp_path: Path) -> None:
    work, (a,) = tmp_path / "work", cohort(tmp_path, "a")
    tile_slides([a], work, SETTINGS)
    encode_slides(work, mean_colour())
    assert bag_of(work, "a").provenance["slide_digest"] == slide_digest(a.path)


def _replace_pixels(path: Path, same_times: bool) -> None:
    """Write other pixels into a file of the same size, optionally with the same times."""
    before, length = path.stat(), len(path.read_bytes())
    picture(path, colour=(120, 60, 200))
    content = path.read_bytes()
    path.write_bytes(content + bytes(max(length - len(content), 0)))
    if same_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
