from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from synthetic_slides import resolution

from scmil.errors import OptionError, OutputError, SlideError
from scmil.slides.synthetic import paint_cohort


@pytest.mark.slow
def test_the_labels_of_a_cohort_are_independent_of_the_resolution(tmp_path: Path) -> None:
    table = paint_cohort(
        tmp_path, slides=6, patients=4, seed=1, size=(1000, 1000), mpp=[1.0, 2.0], annotations=True
    )
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0]) == ["case_id", "slide_id", "label"]
    assert len({row["case_id"] for row in rows}) == 4
    assert len({(row["case_id"], row["label"]) for row in rows}) == 4  # one label a patient
    for label in ("normal", "tumour"):
        slides = [tmp_path / f"{row['slide_id']}.svs" for row in rows if row["label"] == label]
        assert {resolution(path) for path in slides} == {1.0, 2.0}
        assert all(
            ("<Coordinate " in path.with_suffix(".xml").read_text()) == (label == "tumour")
            for path in slides
        )


@pytest.mark.slow
def test_a_cohort_keeps_existing_slides_and_generates_the_others(tmp_path: Path) -> None:
    options = dict(slides=3, size=(1000, 1000), mpp=2.0, seed=1)
    paint_cohort(tmp_path, **options)
    files = sorted(tmp_path.glob("*.svs"))
    before = [path.read_bytes() for path in files]
    files[0].unlink()
    files[1].write_bytes(before[1][:100])
    kept = files[2].stat().st_ino
    with pytest.raises(
        OutputError, match=r"slide_002\.svs exists and was not written by scmil paint"
    ):
        paint_cohort(tmp_path, **options)  # damaged: its origin is not known
    paint_cohort(tmp_path, **options, overwrite=True)
    assert [path.read_bytes() for path in files] == before
    assert files[2].stat().st_ino == kept
    paint_cohort(tmp_path, **{**options, "seed": 2})
    assert [path.read_bytes() for path in files] != before
    assert files[2].stat().st_ino != kept


TWO_SLIDES = dict(slides=2, size=(1000, 1000), mpp=2.0, annotations=True)
NAMES = ["slide_002.svs", "slide_001.xml", "slide_002.geojson", "labels.csv"]


@pytest.mark.parametrize("name", NAMES)
def test_files_of_other_programs_are_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(OutputError, match=f"{name} .*was not written by scmil.*--overwrite"):
        paint_cohort(tmp_path, **TWO_SLIDES, seed=1)
    # And nothing was generated.
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "theirs"}


def test_own_files_and_with_overwrite_those_of_others_are_replaced_but_no_link_is(
    tmp_path: Path,
) -> None:
    for name in NAMES:
        (tmp_path / name).write_text("theirs")
    paint_cohort(tmp_path, **TWO_SLIDES, seed=1, overwrite=True)
    paint_cohort(tmp_path, **TWO_SLIDES, seed=2)  # our own are replaced
    for name in NAMES:
        path, ours = tmp_path / name, tmp_path.parent / "ours"
        path.rename(ours)
        # A link that leads out, here to a disk that is not there.
        path.symlink_to(tmp_path.parent / "elsewhere")
        with pytest.raises(OutputError, match=f"{name} (is there|exists)"):
            paint_cohort(tmp_path, **TWO_SLIDES, seed=3)
        assert path.is_symlink()
        ours.replace(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(tumor=True), "has no option 'tumor'. Further options: tumour, tumour_area"),
        (dict(slides=3, patients=4), "3 slides of 4 patients"),
        (dict(positive=1.5), "positive = 1.5; expected a fraction"),
    ],
)
def test_invalid_cohorts_are_rejected_before_anything_is_generated(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        paint_cohort(tmp_path, **options)
    with pytest.raises(SlideError, match="mpp = 9"):
        paint_cohort(tmp_path, mpp=[0.5, 9.0])
    assert list(tmp_path.iterdir()) == []
