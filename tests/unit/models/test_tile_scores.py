"""Scores of the tiles of a slide."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scmil import Bag, build_model
from scmil.errors import DataError, OptionError
from scmil.models import aggregators
from scmil.models.score_files import (
    FORMAT,
    PAGE,
    open_scores,
    read_scores,
    scores_path,
    write_scores,
)
from scmil.models.tile_scores import Codes, Scores, instance_logits, score_bag

DIM = 16


def bag(n: int = 9, **facts: object) -> Bag:
    places = torch.tensor([(100 * (i % 3), 100 * (i // 3)) for i in range(n)])
    features = torch.randn(n, DIM, generator=torch.Generator().manual_seed(0))
    return Bag("slide", features, 1, xy=places, provenance={"side_level0": 100.0, **facts})


def scored(aggregator: str = "abmil-gated", n: int = 9, **options: object) -> Scores:
    model = build_model(DIM, 2, aggregator, embed=[DIM], seed=0, **options)  # type: ignore[arg-type]
    return score_bag(model, bag(n), ("normal", "tumour"))


@pytest.mark.parametrize("name", aggregators.names())
def test_instance_logits_are_those_of_bags_with_one_instance(name: str) -> None:
    aggregate = aggregators.build(name, DIM, classes=3).eval()
    h, xy = torch.randn(5, DIM), 256 * torch.arange(10).view(5, 2)
    alone = [aggregators.aggregate_bag(aggregate, h[[i]], xy[[i]]).logits for i in range(5)]
    with torch.no_grad():
        assert torch.allclose(
            instance_logits(aggregate, h, xy),
            torch.stack(alone),
            atol=1e-5,
        )


def test_modules_that_vmap_does_not_support_are_evaluated_one_by_one() -> None:
    class Unmappable(torch.nn.Module):
        def forward(self, h: torch.Tensor) -> aggregators.Prediction:
            value = h.sum().item()  # not possible under torch.vmap
            return aggregators.Prediction(torch.tensor([value, -value]), torch.ones(1))

    assert instance_logits(Unmappable(), torch.ones(2, 3)).tolist() == [[3, -3], [3, -3]]


@pytest.mark.parametrize("n", [9, 10_000])
def test_scores_do_not_depend_on_blocks_of_rows(n: int) -> None:
    model = build_model(
        DIM, 2, "abmil-gated", sparse_coding={"atoms": 8}, embed=[DIM], seed=0
    ).eval()
    xy = torch.stack([torch.arange(n) * 10, torch.zeros(n, dtype=torch.long)], 1)
    features = torch.randn(n, DIM, generator=torch.Generator().manual_seed(1))
    scores = score_bag(model, Bag("wide", features, xy=xy))
    with torch.no_grad():
        prediction = model(features)
        embedded = model.embed(features)
        codes = model.refine(embedded)
    assert np.allclose(scores.probabilities, prediction.logits.softmax(-1).numpy(), atol=1e-6)
    assert np.allclose(scores.attention, prediction.attention.numpy(), atol=1e-6)
    assert scores.codes is not None
    # Kept in half precision.
    assert np.allclose(scores.codes.dense(), codes.numpy(), rtol=1e-3, atol=1e-4)
    assert np.allclose(
        scores.of("lambda"), model.refine.sparsity(embedded)[:, 0].detach().numpy(), atol=1e-6
    )
    assert np.allclose(scores.of("atom:3"), codes[:, 3].numpy(), rtol=1e-3, atol=1e-4)
    assert scores.side == 10  # not recorded in the bag: the step between tiles


@pytest.mark.parametrize("n", [9, 50])
@pytest.mark.parametrize("name", ["abmil-gated", "mean", "max", "dsmil", "dtfd-maxmin", "transmil"])
def test_every_tile_passes_through_the_model_once(
    name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scmil.models.streaming.BLOCK_ROWS", 20)
    model = build_model(DIM, 2, name, sparse_coding={"atoms": 16}, embed=[DIM], seed=0)
    rows = {"embed": 0, "refine": 0}

    def count_rows(part: str) -> None:
        def hook(_: object, inputs: tuple[torch.Tensor, ...], __: object) -> None:
            rows[part] += len(inputs[0])

        getattr(model, part).register_forward_hook(hook)

    count_rows("embed")
    count_rows("refine")
    score_bag(model, bag(n))
    extremes = 8 if name == "dtfd-maxmin" and n > 20 else 0  # read again, two of each pseudo-bag
    assert rows == {"embed": n + extremes, "refine": n + extremes}


def test_every_kind_of_score_is_available_by_name() -> None:
    scores = scored(sparse_coding={"atoms": 8})
    assert {len(scores.of(kind)) for kind in scores.kinds()} == {9}
    assert np.array_equal(scores.of("probability"), scores.of("probability:tumour"))
    assert np.allclose(scores.of("probability:normal") + scores.of("probability"), 1)
    assert np.isclose(scores.of("ratio").mean(), 1)
    assert np.allclose(scores.of("sparsity"), (scores.codes.dense() == 0).mean(1))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "atention",
            "unknown score 'atention'. Known: attention, ratio, probability, probability:normal",
        ),
        ("probability:stroma", "unknown score 'probability:stroma'"),
        ("atom:8", "atom:0 to atom:7"),
        ("atom:-1", "unknown score"),
    ],
)
def test_an_unknown_score_raises_with_a_list_of_the_known_ones(kind: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        scored(sparse_coding={"atoms": 8}).of(kind)


def test_without_sparse_coding_there_are_no_atoms() -> None:
    scores = scored()
    of_class = [f"{kind}:{name}" for kind in ("probability", "evidence") for name in scores.classes]
    assert scores.kinds() == ["attention", "ratio", *of_class]
    with pytest.raises(
        OptionError, match=r"the model has no sparse coding\. Train a model with --sc"
    ):
        scores.of("atom:0")


def test_the_released_layer_has_codes() -> None:
    assert scored(sparse_coding={"atoms": 8}, refine="released").codes is not None


def test_effective_tiles_range_from_one_to_all() -> None:
    even = replace(scored("mean"), attention=np.full(9, 1 / 9, np.float32))
    assert np.isclose(even.effective_tiles, 9)
    single = np.zeros(9, np.float32)
    single[3] = 1
    assert replace(even, attention=single).effective_tiles == 1


def test_scores_come_back_from_their_file(tmp_path: Path) -> None:
    for options in ({}, {"sparse_coding": {"atoms": 8}}):
        before = scored(**options)
        after = read_scores(write_scores(before, tmp_path))
        assert (after.id, after.classes, after.side, after.label) == (
            "slide",
            ("normal", "tumour"),
            100.0,
            1,
        )
        for kind in before.kinds():
            assert np.array_equal(before.of(kind), after.of(kind)), kind


def test_an_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = scores_path(tmp_path, "../../etc/passwd")
    assert path.parent == tmp_path / "scores"


def test_damaged_and_foreign_files_are_refused_by_name(tmp_path: Path) -> None:
    path = write_scores(scored(sparse_coding={"atoms": 8}), tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"slide\.npz is damaged"):
        read_scores(path)
    np.savez(path, page=np.frombuffer(b"{}", np.uint8))
    with pytest.raises(DataError, match="damaged or not a file of scores"):
        read_scores(path)
    np.savez(path, page=np.array([object()], dtype=object))
    with pytest.raises(DataError, match="damaged or not a file of scores"):
        read_scores(path)
    with pytest.raises(DataError, match="there is no such file"):
        read_scores(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"attention": np.zeros(4, np.float32)},
        {"instance": np.zeros((9, 3), np.float32)},
        {
            "codes": Codes(
                np.ones(2, np.float16), np.array([0, 9], np.uint16), np.array([0] * 9 + [2]), 8
            )
        },
        {"codes": Codes(np.ones(2, np.float16), np.zeros(2, np.uint16), np.array([0, 2]), 8)},
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    with pytest.raises(DataError, match="damaged"):
        read_scores(write_scores(replace(scored(), **change), tmp_path))  # type: ignore[arg-type]


def test_a_bag_without_coordinates_raises() -> None:
    with pytest.raises(DataError, match="bag 'nowhere' has no coordinates"):
        score_bag(build_model(DIM, 2, "mean"), Bag("nowhere", torch.zeros(3, DIM)))


def test_a_single_tile_of_unknown_size_raises() -> None:
    with pytest.raises(DataError, match="does not record the size of its tiles"):
        score_bag(
            build_model(DIM, 2, "mean"), Bag("one", torch.zeros(1, DIM), xy=torch.zeros(1, 2))
        )


def test_a_folder_without_scores_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="scmil heatmap MODEL BAGS"):
        open_scores(tmp_path)
    (tmp_path / PAGE).write_text('{"format": "other"}')
    with pytest.raises(DataError, match="has no scores that this version reads"):
        open_scores(tmp_path)


def test_names_of_classes_that_are_no_text_are_rejected(tmp_path: Path) -> None:
    page = {"format": FORMAT, "classes": ["normal", [float("inf")]], "slides": {}}
    (tmp_path / PAGE).write_text(json.dumps(page))
    with pytest.raises(DataError, match="has no scores that this version reads"):
        open_scores(tmp_path)
