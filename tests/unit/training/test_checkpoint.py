"""Checkpoints of a training."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scmil import Bag, BagSet, MILModel, Recipe, build_model, fit
from scmil.errors import ModelFileError
from scmil.training.checkpoint import identity_of
from scmil.training.history import History


def bags(n: int = 12) -> list[Bag]:
    generator = torch.Generator().manual_seed(0)
    return [
        Bag(f"bag {i}", torch.randn(5, 8, generator=generator) + i % 2, label=i % 2)
        for i in range(n)
    ]


def lazy(reads: list[str], bags: list[Bag]) -> BagSet:
    """A set that records the ids of the bags that are read."""
    by_id = {bag.id: bag for bag in bags}

    def load(bag_id: str) -> Bag:
        reads.append(bag_id)
        return by_id[bag_id]

    return BagSet.lazy(by_id, load, [bag.label for bag in bags])


class Stopped(Exception):
    """Stands for an interruption by the user."""


def trained(
    recipe: Recipe, checkpoint: Path | None = None, stop_after: int | None = None
) -> tuple[MILModel, History]:
    model = build_model(8, 2, "mi-net", sparse_coding={"atoms": 16}, embed=[9], seed=0)

    def stop(epoch: int) -> None:
        if epoch == stop_after:
            raise Stopped

    return model, fit(
        model, bags()[:8], bags()[8:], recipe, seed=3, progress=stop, checkpoint=checkpoint
    )


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd", "lookahead-radam"])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path, optimiser: str) -> None:
    recipe = Recipe(epochs=5, optimiser=optimiser, learning_rate=1e-2)
    file = tmp_path / "training.safetensors"
    uninterrupted, expected = trained(recipe)
    with pytest.raises(Stopped):
        trained(recipe, file, stop_after=2)
    resumed, history = trained(recipe, file)
    assert history == expected
    assert all(
        torch.equal(a, b)
        for a, b in zip(resumed.parameters(), uninterrupted.parameters(), strict=True)
    )


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_resumed_training_with_patience_and_weights_equals_an_uninterrupted_one(
    tmp_path: Path, stop_after: int
) -> None:
    file, wrong = (
        tmp_path / "training.safetensors",
        [replace(bag, label=1 - (bag.label or 0)) for bag in bags()[8:]],
    )

    def run(
        checkpoint: Path | None = None, stop: int | None = None
    ) -> tuple[MILModel, History, list[int]]:
        model, seen = build_model(8, 2, "mi-net", embed=[9], seed=0), list[int]()

        def progress(epoch: int) -> None:
            seen.append(epoch)
            if epoch == stop:
                raise Stopped

        recipe = Recipe(epochs=30, learning_rate=1e-2, schedule="constant", patience=3)
        return (
            model,
            fit(
                model,
                lazy([], bags()[:8]),
                wrong,
                recipe,
                progress=progress,
                checkpoint=checkpoint,
                class_weights=(1, 2),
            ),
            seen,
        )

    uninterrupted, expected, epochs = run()
    assert stop_after < len(epochs) < 30
    with pytest.raises(Stopped):
        run(file, stop_after)
    resumed, history, rest = run(file)
    assert (history, rest) == (expected, epochs[stop_after:])
    assert all(
        torch.equal(a, b)
        for a, b in zip(resumed.parameters(), uninterrupted.parameters(), strict=True)
    )
    assert run(file)[2] == [], "a training that has stopped early is not continued"


def test_finished_epochs_are_not_repeated(tmp_path: Path) -> None:
    recipe, file = Recipe(epochs=4), tmp_path / "training.safetensors"
    with pytest.raises(Stopped):
        trained(recipe, file, stop_after=3)
    epochs: list[int] = []
    model = build_model(8, 2, "mi-net", sparse_coding={"atoms": 16}, embed=[9], seed=0)
    fit(model, bags()[:8], bags()[8:], recipe, seed=3, progress=epochs.append, checkpoint=file)
    assert epochs == [4]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("other", ["recipe", "seed", "bags", "model", "weights"])
def test_a_checkpoint_of_another_training_raises(tmp_path: Path, other: str) -> None:
    file = tmp_path / "training.safetensors"
    fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)
    before = file.read_bytes()
    with pytest.raises(
        ModelFileError, match=r"is the checkpoint of another training.*Choose another file"
    ):
        fit(
            build_model(8, 2, "abmil" if other == "model" else "mean", seed=0),
            bags(11 if other == "bags" else 12),
            recipe=Recipe(epochs=2 if other == "recipe" else 1),
            seed=1 if other == "seed" else 0,
            class_weights=(1.0, 2.0) if other == "weights" else None,
            checkpoint=file,
        )
    assert file.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut off", "another file", "empty", "a folder", "a pipe"])
def test_a_damaged_checkpoint_raises(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "training.safetensors"
    if damage == "a folder":
        file.mkdir()
    elif damage == "a pipe":
        os.mkfifo(file)
    else:
        fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)
        file.write_bytes(
            {"cut off": file.read_bytes()[:-20], "another file": b"hello" * 99, "empty": b""}[
                damage
            ]
        )
    with pytest.raises(
        ModelFileError, match=r"is not a checkpoint of scmil \(.*Delete it to start the training"
    ):
        fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)


def test_another_safetensors_file_raises(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(2)}, file)
    with pytest.raises(ModelFileError, match="not a checkpoint of scmil"):
        fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)


@pytest.mark.parametrize(
    ("class_weights", "precision", "expected"),
    [
        (None, "float32", "7b4399aae3437a4a"),
        ((1.0, 2.0), "float32", "2302f5440960ccbe"),
        (None, "bfloat16", "4f12c126232f77ba"),
        ((1.0, 2.0), "bfloat16", "91e2a5762633908b"),
    ],
)
def test_checkpoints_of_earlier_versions_stay_valid(
    class_weights: tuple[float, ...] | None, precision: str, expected: str
) -> None:
    """The digests are those of version 0.6.0."""
    bags = [Bag(str(i), torch.zeros(2, 8), label=i % 2) for i in range(4)]
    identity = identity_of(
        build_model(8, 2, "abmil", embed=[4], seed=0),
        bags[:3],
        bags[3:],
        Recipe(epochs=2),
        seed=0,
        class_weights=class_weights,
        precision=precision,
    )
    assert identity["model_and_bags"].startswith(expected)
