"""The stages that scale.py measures, on bags of two instances."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SLIDES_A_PATIENT, FOLDS, CLASSES, DIM = 2, 10, 2, 8
NAMELESS = "slide_0000000"


def name_of(number: int) -> str:
    return f"slide_{number:07d}"


def write_bags(folder: Path, count: int) -> None:
    """Write one file per bag by replacing bytes of a template, which is faster than HDF5."""
    import torch

    from scmil.bags.bag import Bag
    from scmil.bags.hdf5 import ContentDigest, stored_digest, write_bag

    mark = torch.full((2, DIM), 1.5)
    write_bag(
        Bag(NAMELESS, mark, xy=torch.zeros(2, 2), provenance={"encoder": "tiny", "mpp": 0.5}),
        folder / "one.h5",
    )
    template, features = (folder / "one.h5").read_bytes(), mark.half().numpy().tobytes()
    digest = str(stored_digest(folder / "one.h5")).encode()
    (folder / "one.h5").unlink()
    assert template.count(NAMELESS.encode()) == 1
    assert template.count(features) == 1
    assert template.count(digest) == 1
    drawn = np.random.default_rng(0).normal(size=(count, 2, DIM)).astype(np.float16)
    for number in range(count):
        found = ContentDigest(
            name_of(number).encode(), json.dumps({"encoder": "tiny", "mpp": 0.5}, sort_keys=True)
        )
        for name, array in (("features", drawn[number]), ("coords", np.zeros((2, 2), np.int64))):
            found.begin(name, array)
            found.add(array)
        content = template.replace(NAMELESS.encode(), name_of(number).encode())
        content = content.replace(features, drawn[number].tobytes())
        content = content.replace(digest, found.text().encode().rpartition(b":")[2])
        (folder / f"{name_of(number)}.h5").write_bytes(content)


def write_table(path: Path, count: int) -> None:
    rows = (
        f"patient_{i // SLIDES_A_PATIENT},{name_of(i)},{('normal', 'tumor')[i // 7 % 2]}\n"
        for i in range(count)
    )
    path.write_text("case_id,slide_id,label\n" + "".join(rows))


class Study:
    """The stages of a study; each prepares the next."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.names = [name_of(number) for number in range(count)]
        (folder / "bags").mkdir(parents=True)
        write_bags(folder / "bags", count)
        write_table(folder / "labels.csv", count)

    def list(self) -> None:
        from scmil.bags.formats import open_bags
        from scmil.bags.labels import read_labels

        self.labels = read_labels(self.folder / "labels.csv")
        self.bags = open_bags(self.folder / "bags", labels=self.labels)
        assert len(self.bags) == self.count

    def mark(self) -> None:
        self.inputs = self.bags.inputs()

    def recheck(self) -> None:
        assert self.bags.inputs(self.inputs).digest == self.inputs.digest

    def epoch(self) -> None:
        from scmil.models.model import build_model
        from scmil.training.fitting import fit
        from scmil.training.recipes import Recipe

        model = build_model(DIM, CLASSES, "mean", seed=0)
        fit(model, self.bags.subset(range(0, self.count, 10)), recipe=Recipe(epochs=1), seed=0)

    def splits(self) -> None:
        from scmil.bags.splits import load_splits, repeated_folds, save_splits

        folds = repeated_folds(self.bags.labels, FOLDS, 1, 0, self.bags.patients)
        save_splits(self.folder / "splits.csv", folds, self.bags.ids)
        self.folds = load_splits(self.folder / "splits.csv", self.bags.ids)

    def audit(self) -> None:
        from scmil.bags.audit import audit

        found = audit(self.bags, self.labels, self.folds)
        assert found.ok, found.lines()

    def load(self) -> None:
        from scmil.bags.loader import Loader

        some = range(0, self.count, 10)
        assert sum(len(bag.features) for bag in Loader(budget=0).read(self.bags, some)) == 2 * len(
            some
        )

    def restart(self) -> None:
        self._for_each(self.names, self.folder / "bags", "encode", lambda name: None)

    def fail(self) -> None:
        from scmil.errors import SlideError

        def missing(name: str) -> None:
            raise SlideError(f"{name}: there is no such file")

        out, some = self.folder / "out", self.names[::10]
        self._for_each(some, out, "tile", missing)
        self._for_each(
            some, out, "tile", lambda name: (out / f"{name}.h5").touch(), retry_failed=True
        )
        assert not (out / "failures.csv").read_text().count("no such file")

    def _for_each(
        self, names: Sequence[str], out: Path, stage: str, make: Callable[[str], None], **more: Any
    ) -> None:
        from scmil.core.jobs.failure_log import FailureLog
        from scmil.core.jobs.resume import for_each

        for_each(
            names,
            make,
            target=lambda name: out / f"{name}.h5",
            failure_log=FailureLog(out),
            stage=stage,
            **more,
        )

    def results(self) -> None:
        from scmil.core.atomic import write_atomically
        from scmil.studies.protocols import score, summarise
        from scmil.studies.runner import gather_again

        y = np.array(self.bags.labels)
        run, cells = self.folder / "run", []
        for method, distance in (("without SC", 1.0), ("with SC", 1.2)):
            positive = 1 / (1 + np.exp(-np.random.default_rng(1).normal(distance * (2 * y - 1))))
            p = np.stack([1 - positive, positive], 1)[None]
            scored = [
                score("last", 0, fold, split, p, y) for fold, split in enumerate(self.folds[0])
            ]
            name = f"many--{method.replace(' ', '-').lower()}"
            costs = dict.fromkeys(
                ("parameters", "density", "seconds", "multiply_adds", "memory_mib"), 1
            )
            rows = [summarise(scored, y, self.bags.patients)]
            page = {
                "rows": rows,
                "folds": [fold.row(y) for fold in scored],
                "trained": "drawn",
                **costs,
            }
            write_atomically(run / "cells" / name / "result.json", json.dumps(page).encode())
            predictions = [row for fold in scored for row in fold.predictions(self.bags.ids, y)]
            write_atomically(run / "cells" / name / "predictions.csv", as_csv(predictions))
            history = {
                "training": "full",
                "epoch": 1,
                "train_loss": 1,
                "test_loss": 1,
                "test_accuracy": 1,
                "test_auc": 1,
            }
            write_atomically(run / "cells" / name / "history.csv", as_csv([history]))
            cells.append(
                {
                    "cell": name,
                    "dataset": "many",
                    "arm": method,
                    "protocols": ["last"],
                    "settings": {},
                }
            )
        write_atomically(run / "experiment.json", json.dumps(plan_of(cells)).encode())
        write_atomically(run / "results.csv", b"cell\n")
        gather_again(run)

    def report(self) -> None:
        from scmil.report import write_report

        self.pages = write_report(self.folder / "run")


STAGES = (
    "list",
    "mark",
    "recheck",
    "splits",
    "restart",
    "fail",
    "results",
    "report",
    "load",
    "epoch",
    "audit",
)


def plan_of(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": "scmil-run-1",
        "name": "many",
        "title": "Many bags",
        "about": "Random scores, not trained.",
        "arms": [
            {"name": "without SC", "against": None},
            {"name": "with SC", "against": "without SC"},
        ],
        "datasets": ["many"],
        "protocol": {"kind": "kfold", "folds": FOLDS, "repeats": 1, "seed": 0},
        "training": {"epochs": 1},
        "cells": cells,
        "published": [],
        "published_note": "",
        "versions": {},
    }


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    return ("\n".join(lines) + "\n").encode()
