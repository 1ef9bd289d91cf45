"""Result folders of CLAM, STAMP and MIL_BASELINE, written in their layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Subsets = Mapping[str, Sequence[str]]


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def clam_split(path: Path, subsets: Subsets, as_bool: bool = False) -> None:
    """`splits_0.csv` with ragged columns, or `splits_0_bool.csv`."""
    parts = ("train", "val", "test")
    if as_bool:
        names = sorted({name for own in subsets.values() for name in own})
        rows = [[name, *(name in subsets.get(part, ()) for part in parts)] for name in names]
    else:
        most = max(map(len, subsets.values()))
        columns = [[*own, *[""] * (most - len(own))] for own in (subsets.get(p, ()) for p in parts)]
        rows = [[i, *cells] for i, cells in enumerate(zip(*columns, strict=True))]
    write_table(path, ["", *parts], rows)


def clam_predictions(
    path: Path, names: Sequence[str], labels: Sequence[int], scores: Sequence[float]
) -> None:
    """`fold_0.csv` of eval.py."""
    rows = [
        [name, float(y), int(p > 0.5), 1 - p, p]
        for name, y, p in zip(names, labels, scores, strict=True)
    ]
    write_table(path, ["slide_id", "Y", "Y_hat", "p_0", "p_1"], rows)


def clam_folder(home: Path, slides: int = 40, folds: int = 2, seed: int = 0) -> dict[str, int]:
    """A cross-validation without a fault: results, predictions and a true summary.

    Two slides of each patient; slide `s4` is of patient `p2`. Returns the label of each slide.
    """
    generator = np.random.default_rng(seed)
    labels = {f"s{i}": i // 2 % 2 for i in range(slides)}
    names = list(labels)
    summary = []
    for fold in range(folds):
        test = [name for i, name in enumerate(names) if i // 4 % folds == fold]
        rest = [name for name in names if name not in test]
        clam_split(
            home / f"results/exp_s1/splits_{fold}.csv",
            {"train": rest[8:], "val": rest[:8], "test": test},
        )
        y = [labels[name] for name in test]
        scores = np.round(1 / (1 + np.exp(-(generator.normal(size=len(y)) + np.array(y) - 0.5))), 6)
        clam_predictions(home / f"eval_results/EVAL_exp/fold_{fold}.csv", test, y, scores.tolist())
        summary.append([fold, area(y, scores.tolist()), float(np.mean((scores > 0.5) == y))])
        (home / f"results/exp_s1/split_{fold}_results.pkl").write_bytes(
            b"cos\nsystem\n(S'false'\ntR."
        )
    rows = [
        [i, fold, auc, 0.75 + 0.01 * fold, acc, 0.7] for i, (fold, auc, acc) in enumerate(summary)
    ]
    header = ["", "folds", "test_auc", "val_auc", "test_acc", "val_acc"]
    write_table(home / "results/exp_s1/summary.csv", header, rows)
    return labels


def area(labels: Sequence[int], scores: Sequence[float]) -> float:
    """The AUC by counting pairs."""
    pairs = [
        (p > q) + 0.5 * (p == q)
        for p, y in zip(scores, labels, strict=True)
        for q, z in zip(scores, labels, strict=True)
        if y > z
    ]
    return sum(pairs) / len(pairs)


def label_table(path: Path, labels: Mapping[str, int]) -> Path:
    """The labels of `clam_folder`: two slides of each patient."""
    rows = [[f"p{int(name[1:]) // 2}", name, ("normal", "tumor")[y]] for name, y in labels.items()]
    write_table(path, ["case_id", "slide_id", "label"], rows)
    return path


def stamp_folder(home: Path, patients: int = 24, folds: int = 2) -> None:
    """A cross-validation of STAMP: splits.json and patient-preds.csv of each split."""
    names = [f"pat{i}" for i in range(patients)]
    splits = []
    generator = np.random.default_rng(0)
    for fold in range(folds):
        test = names[fold::folds]
        train = [name for name in names if name not in test]
        splits.append({"train_patients": train, "test_patients": test})
        rows: list[list[object]] = []
        for name in test:
            label = int(name[3:]) // folds % 2
            p = float(
                np.round(np.clip(0.5 + 0.3 * (2 * label - 1) + generator.normal() / 5, 0, 1), 4)
            )
            word = ("wild", "mutated")[label]
            rows.append([name, word, ("wild", "mutated")[p > 0.5], p, 1 - p, 0.1])
        header = ["PATIENT", "KRAS", "pred", "KRAS_mutated", "KRAS_wild", "loss"]
        write_table(home / f"split-{fold}/patient-preds.csv", header, rows)
        (home / f"split-{fold}/model.ckpt").write_bytes(b"\x80\x04.")
    home.joinpath("splits.json").write_text(json.dumps({"splits": splits}))


def stamp_outcomes(home: Path, task: str, patients: int = 40, folds: int = 2) -> None:
    """A cross-validation of STAMP on survival or a number; the first patient has no value."""
    names = [f"pat{i}" for i in range(patients)]
    generator = np.random.default_rng(0)
    splits = []
    for fold in range(folds):
        test = names[fold::folds]
        splits.append(
            {"train_patients": [n for n in names if n not in test], "test_patients": test}
        )
        rows: list[list[object]] = []
        for name in test:
            value = float(generator.normal())
            seen = value + float(generator.normal()) / 2
            if task == "survival":
                cells: list[object] = [
                    seen + 100 * fold,
                    round(float(np.exp(-value)), 4),
                    "1.0",
                    "",
                ]
                cells[2] = "1" if generator.random() < 0.7 else "0"
            else:
                cells = [value, seen, abs(value - seen)]
            if name == "pat0":
                cells[1 if task == "survival" else 0] = ""
            rows.append([name, *cells])
        header = {
            "survival": ["PATIENT", "pred_score", "time", "event", "cut_off=0.12"],
            "regression": ["PATIENT", "age", "pred", "loss"],
        }[task]
        write_table(home / f"split-{fold}/patient-preds.csv", header, rows)
    home.joinpath("splits.json").write_text(json.dumps({"splits": splits}))


def mil_baseline_folder(home: Path, selected: int = 2, folds: int = 2) -> None:
    """The split files and logs of MIL_BASELINE, with the best validation AUC in epoch 2."""
    names = [f"feats/s{i}.pt" for i in range(24)]
    header = ["epoch", "train_loss", "val_acc", "val_macro_auc", "test_acc", "test_macro_auc"]
    epochs = [
        [1, 0.7, 0.5, 0.6, 0.5, 0.6],
        [2, 0.5, 0.7, 0.9, 0.6, 0.7],
        [3, 0.4, 0.6, 0.8, 0.9, 0.95],
    ]
    for fold in range(1, folds + 1):
        place = home / f"fold_{fold}"
        test = names[fold - 1 :: folds]
        rest = [name for name in names if name not in test]
        parts = {"train": rest[4:], "val": rest[:4], "test": test}
        most = max(map(len, parts.values()))
        rows = []
        for i in range(most):
            cells: list[object] = []
            for part in parts.values():
                cells += [part[i], i % 2] if i < len(part) else ["", ""]
            rows.append(cells)
        columns = [f"{part}_{kind}" for part in parts for kind in ("slide_path", "label")]
        write_table(place / f"Total_{folds}-fold_demo_{fold}fold.csv", columns, rows)
        write_table(place / "Log_seed1_demo_AB_MIL.csv", header, epochs)
        write_table(place / "Best_Log_seed1_demo_AB_MIL.csv", header, [epochs[selected - 1]])
        (place / f"Best_EPOCH_{selected}.pth").write_bytes(b"\x80\x04.")
