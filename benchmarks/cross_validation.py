"""How long does a whole cross-validation take?   python benchmarks/cross_validation.py

ABMIL-Gated with sparse coding on MUSK1, five times ten folds, 40 epochs of one bag a step, the test
bags predicted after the last, by

- `ours`:      scmil.fit_folds, all 50 models at once, in two processes;
- `reference`: plain modules with the sparse coding of the authors, trained one after another with
               torch.optim.Adam and torch's default number of threads.

Both have the same embedding (256-128-64), attention (64), atoms (256), layers (5), recipe and
standardised folds. All models of ours are trained. Of the 50 models of the reference some are
trained, before, between and after the turns of ours, and the time is 50 times their median; with
`--all` all are trained, and the time is their sum. Each turn runs in its own process, since ours
changes the memory allocation; loading of data and libraries is not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil import Bag, Recipe, build_model, fit_folds, load_dataset
from scmil.bags.scaling import moments
from scmil.bags.splits import Split, repeated_folds

RESULTS = Path(__file__).parent / "results" / "cross_validation.json"
FOLDS, REPEATS, JOBS = 10, 5, 2
EMBED, HIDDEN, ATOMS, LAYERS = (256, 128, 64), 64, 256, 5
TARGET = 8.0  # the smallest accepted speed-up over the reference
TURNS = 2  # of ours; the reference has one more


class PlainSparseCoding(nn.Module):
    """The module of the authors: random atoms, a threshold from a network with layer norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.D = nn.Parameter(F.normalize(torch.randn(dim, ATOMS), dim=0))
        self.mu = nn.Parameter(torch.linalg.matrix_norm(self.D.detach(), 2) ** 2)
        self.zeros = nn.Parameter(torch.zeros(ATOMS), requires_grad=False)
        self.identity = nn.Parameter(torch.eye(ATOMS), requires_grad=False)
        self.first, self.second, self.third = (
            nn.Linear(dim, 128),
            nn.Linear(128, 64),
            nn.Linear(64, 1),
        )
        self.first_norm, self.second_norm = nn.LayerNorm(128), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.softplus(self.first_norm(self.first(x)))
        threshold = self.third(F.softplus(self.second_norm(self.second(hidden)))) / self.mu
        start = x @ self.D
        move = self.identity - self.D.T @ self.D / self.mu
        alpha = self.shrink(start, threshold)
        for _ in range(LAYERS):
            alpha = self.shrink(alpha @ move + start / self.mu, threshold)
        return alpha

    def shrink(self, v: Tensor, threshold: Tensor) -> Tensor:
        return torch.sign(v) * torch.max(torch.abs(v) - threshold, self.zeros)


class PlainModel(nn.Module):
    """Embedding, sparse coding, gated attention, classifier."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = (dim, *EMBED)
        self.embed = nn.Sequential(
            *(
                layer
                for a, b in zip(widths, EMBED, strict=False)
                for layer in (nn.Linear(a, b), nn.ReLU())
            )
        )
        self.refine = PlainSparseCoding(EMBED[-1])
        self.V, self.U, self.w = (
            nn.Linear(ATOMS, HIDDEN),
            nn.Linear(ATOMS, HIDDEN),
            nn.Linear(HIDDEN, 1),
        )
        self.classifier = nn.Linear(ATOMS, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.refine(self.embed(x))
        attention = torch.softmax(self.w(torch.tanh(self.V(h)) * torch.sigmoid(self.U(h))).T, dim=1)
        return self.classifier(attention @ h)


def train_plainly(train: list[Bag], test: list[Bag], recipe: Recipe, seed: int) -> None:
    """A plain training loop: shuffled epochs, one step per bag, a cosine schedule, a test."""
    torch.manual_seed(seed)
    model = PlainModel(train[0].features.shape[1])
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(learned, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=recipe.epochs)
    for _ in range(recipe.epochs):
        model.train()
        for position in torch.randperm(len(train)).tolist():
            optimiser.zero_grad()
            F.cross_entropy(
                model(train[position].features), torch.tensor([train[position].label])
            ).backward()
            optimiser.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        torch.stack([model(bag.features).softmax(-1) for bag in test])


def task() -> tuple[list[Bag], list[Split]]:
    bags = list(load_dataset("musk1"))
    return bags, [
        split
        for folds in repeated_folds([bag.label for bag in bags], FOLDS, REPEATS, seed=0)
        for split in folds
    ]


def reference_turn(folds: list[int], epochs: int) -> list[float]:
    """Seconds for the model of each of these folds."""
    bags, splits = task()
    # The first call starts threads and loads kernels.
    train_plainly(bags[:2], bags[2:4], Recipe(epochs=1), seed=0)
    seconds = []
    for fold in folds:
        start = time.perf_counter()
        scaling = moments([bags[i] for i in splits[fold].train])
        train, test = (
            [scaling.apply_to_bag(bags[i]) for i in part]
            for part in (splits[fold].train, splits[fold].test)
        )
        train_plainly(train, test, Recipe(epochs=epochs), seed=fold)
        seconds.append(time.perf_counter() - start)
    return seconds


def our_turn(epochs: int) -> float:
    """Seconds for all folds, the start of the second process included."""
    bags, splits = task()
    start = time.perf_counter()
    models = [
        build_model(
            bags[0].features.shape[1],
            2,
            {"name": "abmil-gated", "hidden": HIDDEN},
            {"atoms": ATOMS, "layers": LAYERS},
            embed=EMBED,
            seed=fold,
        )
        for fold in range(len(splits))
    ]
    history = fit_folds(models, bags, splits, Recipe(epochs=epochs), look="last", jobs=JOBS)
    seconds = time.perf_counter() - start
    if not math.isfinite(history.train_loss.sum()):
        raise SystemExit("the training diverged: its time is meaningless.")
    return seconds


def run_in_new_process(function: Any, *arguments: Any) -> Any:
    """Run a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(epochs: int, everyone: bool) -> dict[str, Any]:
    total, load = FOLDS * REPEATS, os.getloadavg()[0]
    chosen = (
        list(range(total))
        if everyone
        else list(range(0, total, total // (2 * (TURNS + 1))))[: 2 * (TURNS + 1)]
    )
    portions = [chosen[turn :: TURNS + 1] for turn in range(TURNS + 1)]
    reference: list[float] = run_in_new_process(reference_turn, portions[0], epochs)
    ours = []
    for portion in portions[1:]:
        ours.append(run_in_new_process(our_turn, epochs))
        reference += run_in_new_process(reference_turn, portion, epochs)
    scaled = sum(reference) if everyone else statistics.median(reference) * total
    return {
        "load before": load,
        "models": total,
        "epochs": epochs,
        "ours, seconds for all models": ours,
        "reference, models trained": len(reference),
        "reference, seconds a model": reference,
        "reference, seconds for all models": scaled,
        "speed-up": scaled / statistics.median(ours),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--epochs", type=int, default=Recipe().epochs, help="fewer only for a quick check"
    )
    parser.add_argument("--all", action="store_true", help="train all models of the reference")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    result = measure(options.epochs, options.all)
    trained, total = result["reference, models trained"], result["models"]
    how = "all trained" if trained == total else f"{trained} trained, median x {total}"
    each, ours = result["reference, seconds a model"], result["ours, seconds for all models"]
    print(
        f"MUSK1, abmil-gated with sparse coding, {REPEATS} x {FOLDS} folds, {options.epochs} epochs"
    )
    if result["load before"] > 0.5:
        print(f"  the machine was busy (load {result['load before']:.1f}): the ratio is unreliable")
    all_of_them = result["reference, seconds for all models"]
    turns = ", ".join(f"{seconds:.1f}" for seconds in ours)
    print(f"  ours       {statistics.median(ours):8.1f} s   complete; each turn: {turns}")
    print(f"  reference  {all_of_them:8.1f} s   {how}; {min(each):.2f}-{max(each):.2f} s a model")
    held = result["speed-up"] >= TARGET
    verdict = "reached" if held else "MISSED"
    print(f"  speed-up   {result['speed-up']:8.2f}     target >= {TARGET:g}   {verdict}")
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps(machine | {"python": platform.python_version()} | result, indent=2) + "\n"
    )
    print(f"written to {options.out}")
    raise SystemExit(not held)


if __name__ == "__main__":
    main()
