"""CAMELYON16: the organisers' list, bags of any format under its names, and precise words about
what is missing.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from stand_in import some_slides, write_stand_in

from scmil.bags import datasets
from scmil.bags.bag import Bag, BagSet
from scmil.bags.datasets.camelyon16 import COHORT, camelyon16_splits, not_exhaustively_annotated
from scmil.bags.datasets.cohorts import CohortWarning, load_cohort, status_of
from scmil.bags.formats import export_bags
from scmil.errors import DataError, OptionError, SplitError

DATA = Path(__file__).parents[3] / "data" / "camelyon16"
FEW = some_slides(COHORT, 4)
ids = [listed.slide for listed in FEW]


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCMIL_DATA", raising=False)
    monkeypatch.delenv("SCMIL_ALLOW_MISSING", raising=False)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """All 399 names, one number each: empty enough to be quick."""
    for listed in COHORT.listed:
        np.save(tmp_path / f"{listed.slide}.npy", np.full((1, 2), float(listed.label), np.float32))
    return tmp_path


def save(path: Path) -> None:
    np.save(path, np.zeros((1, 2), np.float32))


def empty_bags(names: list[str]) -> BagSet:
    return BagSet([Bag(name, torch.zeros(1, 2), COHORT.of(name)[0]) for name in names])


def test_the_list_has_the_official_counts() -> None:
    counts = Counter((listed.part, COHORT.classes[listed.label]) for listed in COHORT.listed)
    assert counts == {
        ("train", "normal"): 159, ("train", "tumor"): 111,
        ("test", "normal"): 80, ("test", "tumor"): 49,
    }  # fmt: skip


def test_labels_of_the_test_part_are_the_organisers() -> None:
    reference = list(csv.reader((DATA / "reference.csv").read_text().splitlines()))
    assert {name: int(kind == "Tumor") for name, kind, *_ in reference} == {
        listed.slide: listed.label for listed in COHORT.listed if listed.part == "test"
    }


def test_slides_with_unfinished_outlines_are_tumours() -> None:
    names = not_exhaustively_annotated()
    assert len(names) == 21
    assert {COHORT.of(name)[0] for name in names} == {1}


def test_a_whole_cohort_loads_in_the_order_of_the_list(whole: Path) -> None:
    bags = datasets.load_dataset("camelyon16", data=whole)
    assert bags.ids == tuple(listed.slide for listed in COHORT.listed)
    assert (bags.classes, bags.labels.count(1), bags.patients[0]) == (
        ("normal", "tumor"),
        160,
        None,
    )
    assert all(float(bags[i].features[0, 0]) == bags.labels[i] for i in (0, 200, 398))


def test_names_in_other_letters_are_the_same_slides(whole: Path) -> None:
    (whole / "test_001.npy").rename(whole / "Test_001.npy")
    assert "Test_001" in load_cohort(COHORT, whole).ids


def test_two_bags_of_one_slide_are_rejected(whole: Path) -> None:
    save(whole / "Test_001.npy")
    with pytest.raises(DataError, match="two bags of slide 'test_001'"):
        load_cohort(COHORT, whole)


def test_missing_slides_are_counted_and_named_with_the_command(whole: Path) -> None:
    for name in ("tumor_001", "tumor_002", "tumor_003", "test_130"):
        (whole / f"{name}.npy").unlink()
    with pytest.raises(DataError) as error_info:
        load_cohort(COHORT, whole)
    assert "4 of the 399 slides" in str(error_info.value)
    assert "tumor_001, tumor_002, tumor_003 and 1 more" in str(error_info.value)
    assert f"scmil encode SLIDES --out {whole} --encoder resnet18 --preset biopsy" in str(
        error_info.value
    )
    assert "allow_missing = true" in str(error_info.value)


def test_an_incomplete_cohort_is_used_only_on_request(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole / "tumor_001.npy").unlink()
    with pytest.warns(CohortWarning, match=r"1 of the 399 .*: tumor_001; continuing"):
        assert len(load_cohort(COHORT, whole, allow_missing=True)) == 398
    monkeypatch.setenv("SCMIL_ALLOW_MISSING", "1")
    with pytest.warns(CohortWarning):
        assert len(load_cohort(COHORT, whole)) == 398
    with pytest.raises(DataError):
        load_cohort(COHORT, whole, allow_missing=False)


def test_a_folder_without_any_listed_slide_is_always_rejected(tmp_path: Path) -> None:
    save(tmp_path / "mine.npy")
    with pytest.warns(CohortWarning), pytest.raises(DataError, match="399 of the 399"):
        load_cohort(COHORT, tmp_path, allow_missing=True)


def test_withdrawn_and_foreign_slides_are_left_out_with_the_reason(whole: Path) -> None:
    for name in ("test_049", "mine"):
        save(whole / f"{name}.npy")
    with pytest.warns(CohortWarning, match=r"2 bags are not of camelyon16 .* withdrawn; mine"):
        assert len(load_cohort(COHORT, whole)) == 399


def test_the_earlier_name_of_a_slide_is_explained(whole: Path) -> None:
    (whole / "tumor_111.npy").rename(whole / "normal_086.npy")
    with (
        pytest.warns(CohortWarning),
        pytest.raises(DataError, match="earlier name of tumor_111: rename it"),
    ):
        load_cohort(COHORT, whole)


# ----------------------------------------------------------------------------- folders and encoders


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return write_stand_in(tmp_path / "work", FEW, ["resnet18", "resnet18-two-scales"], instances=2)


@pytest.mark.filterwarnings("ignore::scmil.bags.datasets.cohorts.CohortWarning")
def test_a_working_folder_gives_the_bags_of_the_encoder_that_is_asked_for(work: Path) -> None:
    assert load_cohort(COHORT, work, "resnet18", allow_missing=True).dim == 512
    assert load_cohort(COHORT, work, "resnet18-two-scales", allow_missing=True).dim == 1024
    assert load_cohort(COHORT, work / "bags", "resnet18", allow_missing=True).dim == 512
    with pytest.raises(DataError, match="several sets of features"):
        load_cohort(COHORT, work, allow_missing=True)


def test_an_encoder_that_is_not_there_comes_with_its_command(work: Path) -> None:
    (work / "slides.csv").write_text("slide,path,mpp\n")
    with pytest.raises(
        DataError,
        match=r"no features 'swin-two-scales'.*scmil encode \S+ --encoder swin --two-scales$",
    ):
        load_cohort(COHORT, work, "swin-two-scales")


def test_slides_that_failed_are_pointed_at(work: Path) -> None:
    (work / "failures.csv").write_text("slide,stage,cause\n")
    with pytest.raises(DataError, match=r"with the cause: \S+failures\.csv"):
        load_cohort(COHORT, work, "resnet18")


@pytest.mark.filterwarnings("ignore::scmil.bags.datasets.cohorts.CohortWarning")
@pytest.mark.parametrize("format_name", ["clam", "trident", "torchmil"])
def test_features_of_other_tools_do_with_a_folder_for_each_encoder(
    tmp_path: Path, format_name: str
) -> None:
    bags = [Bag(name, torch.ones(2, 4), xy=torch.tensor([[0, 0], [256, 0]])) for name in ids]
    known = {
        "encoder": "resnet18",
        "mpp": 0.5,
        "size_px": 256,
        "overlap_px": 0,
        "side_level0": 512,
        "slide_mpp": 0.25,
    }
    export_bags(bags, tmp_path / "camelyon16" / "resnet18", format_name, known)
    loaded = load_cohort(COHORT, tmp_path, "resnet18", allow_missing=True)
    assert sorted(loaded.ids) == sorted(ids)
    assert loaded[0].features.shape == (2, 4)


def test_a_folder_of_one_encoder_cannot_be_asked_for_another(whole: Path) -> None:
    with pytest.raises(
        DataError, match=r"does not support the option key.*Put the features of swin into \S+swin"
    ):
        load_cohort(COHORT, whole, "swin")


def test_the_error_for_slides_without_features_names_the_command_that_encodes_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "tumor_001.tif").touch()
    with pytest.raises(
        DataError,
        match=r"has slides of camelyon16, but no features. Encode: scmil encode \S+ --out \S+-bags",
    ):
        load_cohort(COHORT, tmp_path, "resnet18")
    ready, where, remedy = status_of("camelyon16", tmp_path)
    assert (ready, where) == (False, "")
    assert remedy.startswith(f"Encode: scmil encode {tmp_path} ")


def test_nowhere_is_an_error_with_a_remedy() -> None:
    with pytest.raises(DataError, match=r"not on this computer\. Encode the slides"):
        load_cohort(COHORT)
    assert status_of("camelyon16") == (False, "", status_of("camelyon16")[2])
    with pytest.raises(DataError, match="not a folder, but the argument data names it"):
        load_cohort(COHORT, "nowhere")


def test_status_looks_at_names_only(work: Path, tmp_path: Path) -> None:
    assert status_of("camelyon16", work) == (True, str(work), "")
    (tmp_path / "tiled" / "tiles").mkdir(parents=True)
    (tmp_path / "tiled" / "tiles" / "tumor_001.h5").touch()
    assert not status_of("camelyon16", tmp_path / "tiled")[0]


# --------------------------------------------------------------------------------------- the splits


def test_every_run_tests_the_official_part_and_draws_its_own_validation() -> None:
    bags = empty_bags([listed.slide for listed in COHORT.listed])
    runs = camelyon16_splits(bags, runs=5, valid=0.1, seed=0)
    sizes = {(len(split.train), len(split.valid), len(split.test)) for [split] in runs}
    assert sizes == {(243, 27, 129)}
    assert {split.test for [split] in runs} == {tuple(range(270, 399))}
    assert len({split.valid for [split] in runs}) == 5
    assert all(sum(bags.labels[i] or 0 for i in split.valid) == 11 for [split] in runs)
    assert camelyon16_splits(bags, 2, seed=0) == runs[:2] != camelyon16_splits(bags, 2, seed=1)


def test_the_split_is_official_by_name_and_rejected_for_others() -> None:
    from scmil.bags.datasets.cohorts import official_splits as by_name

    bags = empty_bags(ids)
    assert by_name("camelyon16", bags, repeats=3, valid=0.3, seed=7) == camelyon16_splits(
        bags, 3, 0.3, 7
    )
    with pytest.raises(OptionError, match="no official splits"):
        by_name("musk1", bags)
    with pytest.raises(OptionError, match="repeats = 0"):
        by_name("camelyon16", bags, repeats=0)


def test_foreign_bags_and_a_missing_test_split_are_rejected() -> None:
    with pytest.raises(SplitError, match="'mine' is not of CAMELYON16"):
        camelyon16_splits(BagSet([Bag("mine", torch.zeros(1, 2), 0)]))
    with pytest.raises(SplitError, match="none of the 8 bags"):
        camelyon16_splits(empty_bags([name for name in ids if not name.startswith("test")]))
