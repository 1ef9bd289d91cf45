from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from slide_files import ramp, rendered, write_dicom

from scmil.errors import SlideError
from scmil.slides import find_slides, open_slide


def test_the_slides_below_a_folder_are_found(tmp_path: Path) -> None:
    for name in [
        "b.svs",
        "A.NDPI",
        "x/c.tif",
        "x/y/d.png",
        ".hidden.svs",
        ".cache/e.svs",
        "notes.txt",
        "m.mrxs",
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in [
        "m/Data0001.dat",
        "m/preview.jpg",
        "h/h.vms",
        "h/h_part1.jpg",
        "v.vsi",
        "_v_/stack1/frame.tif",
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in find_slides(tmp_path)]
    assert found == ["A.NDPI", "b.svs", "h/h.vms", "m.mrxs", "v.vsi", "x/c.tif", "x/y/d.png"]


def test_a_folder_of_one_dicom_series_is_one_slide(tmp_path: Path) -> None:
    pixels = rendered(ramp, (90, 70))
    for _ in range(2):
        write_dicom(tmp_path / "one", pixels, series="1.2.3")
    two = sorted(
        write_dicom(tmp_path / "two", pixels, series=series) for series in ("1.2.4", "1.2.5")
    )
    assert find_slides(tmp_path) == [tmp_path / "one", *two]
    assert open_slide(two[1]).size == (90, 70)
    with pytest.raises(
        SlideError, match=r"two contains 2 DICOM series\. Open one of these files: "
    ):
        open_slide(tmp_path / "two")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_links_lead_to_files_and_never_round_in_circles(tmp_path: Path) -> None:
    slides, elsewhere = tmp_path / "slides", tmp_path / "elsewhere"
    for folder in (slides, elsewhere):
        folder.mkdir()
    (elsewhere / "far.svs").touch()
    (slides / "linked.svs").symlink_to(elsewhere / "far.svs")
    (slides / "broken.svs").symlink_to(elsewhere / "gone.svs")
    (slides / "round").symlink_to(slides)
    (slides / "out").symlink_to(elsewhere)
    # Missing files are not skipped.
    assert find_slides(slides) == [slides / "broken.svs", slides / "linked.svs"]
    with pytest.raises(
        SlideError,
        match=r"broken\.svs is a link to .*gone\.svs, which does not exist. Mount the disk",
    ):
        open_slide(slides / "broken.svs")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["pipe.svs", "pipe.dcm"])
def test_a_pipe_with_the_name_of_a_slide_is_an_error_and_not_waited_for(
    name: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / name)
    [found] = find_slides(tmp_path)
    with pytest.raises(SlideError, match="is not a regular file"):
        open_slide(found)


def test_a_folder_that_cannot_be_listed_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    monkeypatch.setattr(os, "listdir", guarded)  # by which pathlib lists
    (tmp_path / "good.svs").touch()
    assert find_slides(tmp_path) == [tmp_path / "good.svs", tmp_path / "locked"]
    for call in (lambda: open_slide(tmp_path / "locked"), lambda: find_slides(tmp_path / "locked")):
        with pytest.raises(SlideError, match="locked: cannot list the folder: Permission denied"):
            call()


def test_only_a_folder_is_searched(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match="is not a folder"):
        find_slides(tmp_path / "missing")
    assert find_slides(tmp_path) == []
