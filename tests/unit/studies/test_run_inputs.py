"""Results belong to the data that they were made from: another answer to changed data than the old
result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from scmil.bags.bag import Bag
from scmil.bags.hdf5 import read_bag, write_bag
from scmil.errors import ConfigError, DataError
from scmil.report import write_report
from scmil.studies import cell as cell_module
from scmil.studies import load_trained_model, open_data, run_inputs, score_folder, train
from scmil.studies import runner as experiment
from scmil.studies.plan import Plan, make_plan
from scmil.studies.runner import cell_folder, run

pytestmark = pytest.mark.slow  # models are trained

DIM = 6


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Twelve bags of two classes, of which the first feature tells the class, and a table of
    labels.
    """
    generator = torch.Generator().manual_seed(0)
    for i in range(12):
        x = torch.randn(5, DIM, generator=generator)
        x[:, 0] += 4 * (i % 2)
        write(tmp_path, Bag(f"s{i}", x, xy=torch.tensor([[256 * j, 0] for j in range(5)])))
    label(tmp_path)
    return tmp_path


def write(home: Path, bag: Bag) -> None:
    provenance = {"encoder": "tiny", "size_px": 256, "mpp": 0.5, "side_level0": 256}
    write_bag(replace(bag, provenance=provenance), home / "bags" / f"{bag.id}.h5")


def label(home: Path, **other: str) -> None:
    names = {f"s{i}": ("normal", "tumour")[i % 2] for i in range(12)} | other
    rows = [f"p{slide_id},{slide_id},{name}" for slide_id, name in names.items()]
    (home / "labels.csv").write_text("\n".join(["case_id,slide_id,label", *rows]) + "\n")


def plan_of(home: Path, arms: int = 2, **more: Any) -> Plan:
    listed = [
        {"name": "mean", "model": {"aggregator": "mean"}},
        {"name": "max", "against": "mean", "model": {"aggregator": "max"}},
    ]
    document = {
        "data": {"dataset": str(home / "bags"), "labels": str(home / "labels.csv")},
        "protocol": {"folds": 2, "selection": ["last"]},
        "model": {"embed": [4]},
        "training": {"epochs": 2},
        "arms": listed[:arms],
    }
    return make_plan(document | more, "mine")


def noise(home: Path) -> None:
    for path in sorted((home / "bags").glob("*.h5")):
        bag = read_bag(path)
        write(
            home,
            replace(bag, features=torch.randn(5, DIM, generator=torch.Generator().manual_seed(1))),
        )


def noise_in_place(home: Path) -> None:
    with h5py.File(home / "bags" / "s3.h5", "r+") as file:
        file["features"][...] = 0


def one_label(home: Path) -> None:
    label(home, s3="normal")


def half_deleted(home: Path) -> None:
    for i in range(6):
        (home / "bags" / f"s{i}.h5").unlink()


def a_new_bag(home: Path) -> None:
    write(home, Bag("s12", torch.zeros(5, DIM)))
    label(home, s12="normal")


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "noise": (noise, "the features of 12 bags changed"),
    "noise in place": (noise_in_place, r"the features of 1 bag changed \(s3\)"),
    "a label": (one_label, r"the label of 1 bag changed \(s3\)"),
    "half deleted": (half_deleted, "6 bags were removed"),
    "a new bag": (a_new_bag, r"1 bag is new \(s12\)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_result_of_other_data_is_rejected_with_what_has_changed(home: Path, name: str) -> None:
    change, words = CHANGES[name]
    run(plan_of(home), home / "out", jobs=1)
    change(home)
    with pytest.raises(
        ConfigError, match=f"made from other data; the first is 'bags--mean': {words}.*--overwrite"
    ):
        run(plan_of(home), home / "out", jobs=1)


@pytest.mark.slow
def test_overwrite_computes_what_a_fresh_run_on_the_present_data_computes(home: Path) -> None:
    run(plan_of(home), home / "out", jobs=1)
    noise(home)
    outcome = run(plan_of(home), home / "out", jobs=1, overwrite=True)
    assert (outcome.before, outcome.finished) == (0, 2)
    run(plan_of(home), home / "fresh", jobs=1)
    for cell in plan_of(home).cells:
        ours, fresh = (
            cell_folder(home / place, cell) / "predictions.csv" for place in ("out", "fresh")
        )
        assert ours.read_text() == fresh.read_text()


def test_unchanged_data_is_kept_also_if_it_was_written_again_or_touched(home: Path) -> None:
    run(plan_of(home), home / "out", jobs=1)
    for path in sorted((home / "bags").glob("*.h5"))[:6]:
        write(home, read_bag(path))
    (home / "bags" / "s7.h5").touch()
    assert run(plan_of(home), home / "out", jobs=1).before == 2


def test_unchanged_files_are_not_opened_for_the_comparison(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plan_of(home), home / "out", jobs=1)
    monkeypatch.setattr(
        "scmil.bags.hdf5.stored_digest", lambda path: pytest.fail("an unchanged bag was opened")
    )
    assert run(plan_of(home), home / "out", jobs=1).before == 2


def test_one_arm_before_and_one_after_a_change_are_never_compared(home: Path) -> None:
    run(plan_of(home, arms=1), home / "out", jobs=1)
    noise(home)
    with pytest.raises(ConfigError, match="made from other data"):
        run(plan_of(home), home / "out", jobs=1)


def test_a_report_does_not_compare_arms_of_different_data(home: Path) -> None:
    run(plan_of(home), home / "out", jobs=1)
    path = home / "out/cells/bags--max/result.json"
    page = json.loads(path.read_text())
    page["data"]["digest"] = "0" * 64
    path.write_text(json.dumps(page))
    experiment.gather(plan_of(home), home / "out")
    with pytest.raises(DataError, match="trained on different data of 'bags'"):
        write_report(home / "out")


def test_results_of_an_earlier_version_are_read_with_a_note_and_not_mixed_with_new_ones(
    home: Path,
) -> None:
    run(plan_of(home), home / "out", jobs=1)
    for path in (home / "out/cells").glob("*/result.json"):
        page = json.loads(path.read_text())
        del page["data"]
        path.write_text(json.dumps(page))
    [note] = run(plan_of(home), home / "out", jobs=1).notes
    assert "2 results" in note
    assert "did not record its data" in note
    assert "not recorded" in (write_report(home / "out")[0]).read_text()
    (home / "out/cells/bags--max/result.json").unlink()
    with pytest.raises(ConfigError, match="cannot be compared with them"):
        run(plan_of(home), home / "out", jobs=1)


def test_data_that_changes_while_a_cell_runs_makes_the_cell_fail(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = cell_module.train_folds  # type: ignore[attr-defined]

    def change_meanwhile(*arguments: Any) -> Any:
        found = trainings(*arguments)
        write(home, Bag("s3", torch.zeros(5, DIM)))
        return found

    monkeypatch.setattr(cell_module, "train_folds", change_meanwhile)
    outcome = run(plan_of(home, arms=1), home / "out", jobs=1)
    assert "the data changed during the run 'bags--mean'" in outcome.failed["bags--mean"]


def test_checkpoints_of_other_data_are_not_used(home: Path) -> None:
    folder = home / "out/cells/bags--mean"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "inner-0.safetensors").write_bytes(b"of other data")
    (folder / "checkpoints" / "data").write_text("another digest")
    cell_module._delete_other_checkpoints(folder, "this digest")
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["data"]
    (folder / "checkpoints" / "inner-0.safetensors").write_bytes(b"of this data")
    cell_module._delete_other_checkpoints(folder, "this digest")
    assert len(list((folder / "checkpoints").iterdir())) == 2


def test_a_table_of_splits_is_part_of_the_data(home: Path) -> None:
    splits = home / "splits.csv"
    from scmil.bags.splits import repeated_folds, save_splits

    ids = sorted(f"s{i}" for i in range(12))
    labels = [int(slide_id[1:]) % 2 for slide_id in ids]
    save_splits(splits, repeated_folds(labels, 2, 1, 0), ids)
    protocol = {"folds": 2, "selection": ["last"], "splits": str(splits)}
    run(plan_of(home, protocol=protocol), home / "out", jobs=1)
    save_splits(splits, repeated_folds(labels, 2, 1, 7), ids)
    with pytest.raises(ConfigError, match=r"the table of splits splits\.csv has changed"):
        run(plan_of(home, protocol=protocol), home / "out", jobs=1)


# -------------------------------------------------------------------------------- models and scores


def trained(home: Path, **options: Any) -> Any:
    data = open_data(home / "bags", home / "labels.csv")
    return train(data, home / "model", aggregator="mean", epochs=2, **options)


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_of_other_data_is_not_handed_out(home: Path, name: str) -> None:
    change, words = CHANGES[name]
    trained(home)
    change(home)
    with pytest.raises(ConfigError, match=f"was trained on other data: {words}.*--overwrite"):
        trained(home)


def test_overwrite_trains_the_model_of_the_present_data(home: Path) -> None:
    trained(home)
    noise(home)
    again = trained(home, overwrite=True)
    data = open_data(home / "bags", home / "labels.csv")
    train(data, home / "fresh", aggregator="mean", epochs=2)
    for name in ("model.safetensors", "predictions.csv"):
        assert (again.out / name).read_bytes() == (home / "fresh" / name).read_bytes()


def test_a_model_of_an_earlier_version_is_handed_out_with_a_note(home: Path) -> None:
    page = trained(home).study
    del page["settings"]["data"]["inputs"]
    (home / "model/study.json").write_text(json.dumps(page))
    (home / "model/inputs.json").unlink()
    [note] = trained(home).notes
    assert "did not record its features" in note


def test_scores_of_other_bags_with_the_same_ids_are_made_again(home: Path) -> None:
    trained(home)
    bags = open_data(home / "bags", home / "labels.csv").bags
    first = score_folder(home / "model", bags).scores["s3"]
    write(home, Bag("s3", torch.randn(5, DIM), xy=torch.tensor([[256 * j, 0] for j in range(5)])))
    bags = open_data(home / "bags", home / "labels.csv").bags
    scores = score_folder(home / "model", bags).scores
    fresh = score_folder(home / "model", bags, home / "fresh").scores
    assert scores["s3"].probabilities.tolist() == fresh["s3"].probabilities.tolist()
    assert scores["s3"].probabilities.tolist() != first.probabilities.tolist()


def test_scores_follow_the_label(home: Path) -> None:
    trained(home)
    score_folder(home / "model", open_data(home / "bags", home / "labels.csv").bags)
    label(home, s3="normal")
    bags = open_data(home / "bags", home / "labels.csv").bags
    assert score_folder(home / "model", bags).scores["s3"].label == 0


def test_scores_of_a_bag_that_cannot_be_read_any_more_are_not_shown(home: Path) -> None:
    trained(home)
    bags = open_data(home / "bags", home / "labels.csv").bags
    score_folder(home / "model", bags)
    noise_in_place(home)
    found = score_folder(home / "model", bags)
    assert list(found.failed) == ["s3"]
    assert "s3" not in found.scores


def test_scores_of_another_slide_under_this_ones_name_are_rejected(home: Path) -> None:
    trained(home)
    scores = score_folder(home / "model", open_data(home / "bags", home / "labels.csv").bags).scores
    folder = home / "model/maps/scores"
    (folder / "s3.npz").write_bytes((folder / "s5.npz").read_bytes())
    with pytest.raises(DataError, match=r"s3\.npz has scores of slide 's5'"):
        scores["s3"]


def test_a_training_that_was_killed_and_whose_data_has_changed_does_not_go_on(home: Path) -> None:
    page = trained(home).study["settings"]
    (home / "model/study.json").unlink()
    (home / "model/begun.json").write_text(json.dumps(page))
    (home / "model/checkpoint.safetensors").write_bytes(b"begun")
    one_label(home)
    with pytest.raises(ConfigError, match="was trained on other data"):
        trained(home)


def test_the_record_of_inputs_may_be_damaged(home: Path) -> None:
    run(plan_of(home), home / "out", jobs=1)
    [record] = (home / "out" / run_inputs.FOLDER).glob("*.json")
    record.write_text('{"bags": [[1]], "files": {}}')
    assert run(plan_of(home), home / "out", jobs=1).before == 2


def test_load_trained_model_reads_what_train_wrote(home: Path) -> None:
    assert load_trained_model(trained(home).out)[1]["settings"]["data"]["inputs"]
