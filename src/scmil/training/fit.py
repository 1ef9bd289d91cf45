"""Fit a model to bags and predict: one bag a step, by a recipe, from a seed, with checkpoints that resume exactly.

Bags may be of any size (`chunks.py`), and are read while the step before runs (`loader.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scmil.models.aggregators import Prediction
from scmil.bags.bag import Bag
from scmil.models.streaming import forward, predict_bag
from scmil.errors import BagError, DataError, ModelFileError, OptionError
from scmil.core.files import check_regular, write_atomically
from scmil.bags.loader import Loader, ids_of, labels_of
from scmil.core.memory import memory_is_kept
from scmil.stats.metrics import accuracy, auc
from scmil.models.model import MILModel
from scmil.training.recipes import Recipe, clip_each, make_optimiser

PRECISIONS = ("float32", "bfloat16")  # of products, while training; float32 stands for that of the model


@dataclass
class History:
    """What happened in each epoch. Without a validation part its lists stay empty.

    `best_epoch` counts from 1: the highest validation AUC, of equal ones the lowest validation loss, of equal ones the first.
    """

    train_loss: list[float] = field(default_factory=list)
    valid_loss: list[float] = field(default_factory=list)
    valid_accuracy: list[float] = field(default_factory=list)
    valid_auc: list[float] = field(default_factory=list)

    @property
    def best_epoch(self) -> int | None:
        """The epoch to choose, if there is a validation part to choose by."""
        if not self.valid_loss:
            return None
        ranking = [(-_or_zero(a), loss) for a, loss in zip(self.valid_auc, self.valid_loss, strict=True)]
        return ranking.index(min(ranking)) + 1


def fit(
    model: MILModel,
    train: Sequence[Bag],
    valid: Sequence[Bag] | None = None,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    class_weights: Sequence[float] | None = None,
    device: str | torch.device = "cpu",
    precision: str = "float32",
) -> History:
    """Train the model on labelled bags, in place. With a validation part, it ends as it was in its best epoch.

    Repeats exactly for a seed: order and dropout of a step depend on the seed, the epoch and the bag's id, and on nothing
    before. So a run that is stopped and called again with the same `checkpoint` file ends with the same weights as an
    unbroken one. `progress` is called with the number of each finished epoch.

    `class_weights` multiply the loss of a training bag, one number for each class; validation stays unweighted. The
    computation is on `device`, and the model ends where it was before. With `precision="bfloat16"` products are computed in
    that precision while the weights stay in theirs: twice as fast on slides where the processor knows it.

    >>> from scmil import build_model
    >>> bags = [Bag(str(i), torch.full((3, 8), float(i % 2)), label=i % 2) for i in range(6)]
    >>> history = fit(build_model(8, 2, "abmil", embed=[4], seed=0), bags, recipe=Recipe(epochs=3))
    >>> len(history.train_loss), history.train_loss[-1] < history.train_loss[0]
    (3, True)
    """
    recipe = recipe or Recipe()
    check_labels(train)
    if valid is not None:
        check_labels(valid)
    elif recipe.patience is not None:
        raise OptionError(
            f"patience = {recipe.patience}: without a validation part there is no best epoch to wait for."
        )
    check_precision(precision)
    weights = None if class_weights is None else checked_weights(class_weights, labels_of(train))
    with own_randomness(), memory_is_kept(), _on(model, device):
        optimiser = make_optimiser(recipe, [(p, p.ndim > 1) for p in model.parameters() if p.requires_grad])
        loader = Loader(room=None if recipe.epochs > 1 else 0)  # nothing is kept that is not read again
        run = _Run(model, optimiser, History(), best=None, loader=loader, class_weights=weights, precision=precision)
        identity = _identity(
            model, train, valid, recipe, seed, (weights, precision) if precision != PRECISIONS[0] else weights
        )
        file = None if checkpoint is None else _Checkpoint(Path(checkpoint), identity)
        start = file.load_into(run) if file else 0
        for epoch in range(start, recipe.epochs):
            if _patience_is_over(run.history, recipe):
                break
            run.history.train_loss.append(_train_epoch(run, train, recipe, seed, epoch))
            if valid is not None:
                _look_at_valid(run, valid, epoch + 1)
            if file:
                file.save(run, epoch + 1)
            if progress:
                progress(epoch + 1)
        if run.best is not None:
            model.load_state_dict(run.best)
    model.eval()
    return run.history


@torch.no_grad()
def predict(model: MILModel, bags: Sequence[Bag], device: str | torch.device = "cpu") -> Tensor:
    """The probability of every class for every bag: (bags, classes), on the CPU.

    >>> from scmil import build_model
    >>> predict(build_model(8, 3, "mean", seed=0), [Bag("a", torch.ones(5, 8))]).sum(1)
    tensor([1.])
    """
    training = model.training
    model.eval()
    try:
        with _on(model, device):
            return _probabilities(model, Loader(room=0).read(bags))
    finally:
        model.train(training)


def check_labels(bags: Sequence[Bag]) -> None:
    """Refuse bags that nothing can be learned from."""
    if not len(bags):
        raise DataError("there are no bags to train on.")
    if unlabelled := [name for name, label in zip(ids_of(bags), labels_of(bags), strict=True) if label is None]:
        raise DataError(f"bags without a label: {', '.join(unlabelled[:5])}{' …' * (len(unlabelled) > 5)}.")


def weigh_classes(
    asked: str | Sequence[float] | None, labels: Sequence[int | None], classes: int
) -> list[float] | None:
    """The weight of each class; `balanced` gives all the same say: bags / (classes x bags of the class).

    >>> weigh_classes("balanced", [0, 0, 0, 1], classes=2)
    [0.6666666666666666, 2.0]
    """
    if asked is None or not isinstance(asked, str):
        return None if asked is None else list(asked)
    if asked != "balanced":
        raise OptionError(f"class weights {asked!r}: 'balanced', or a number for each class.")
    counts = [sum(label == number for label in labels) for number in range(classes)]
    if 0 in counts:
        raise OptionError(f"class weights 'balanced': no training bag is of class {counts.index(0)}.")
    return [len(labels) / (classes * count) for count in counts]


def checked_weights(weights: Sequence[float], labels: Sequence[int | None]) -> tuple[float, ...]:
    """Refuse weights that are not one positive number a class."""
    classes = 1 + max(label or 0 for label in labels)
    if len(weights) < classes or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise OptionError(
            f"class_weights = {list(weights)}: a number above 0 is needed for each of the {classes} classes."
        )
    return tuple(map(float, weights))


@contextmanager
def _on(model: MILModel, device: str | torch.device) -> Iterator[None]:
    """Bring the model to where it computes, and back."""
    before = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise OptionError(f"device = {str(device)!r} cannot be used here: {reason} Use 'cpu'.") from None
    model.to(device)
    try:
        yield
    finally:
        model.to(before)


# --------------------------------------------------------------------------------------------------------- randomness


def step_seed(seed: int, epoch: int, bag_id: str) -> int:
    """The number from which one step draws: of the seed, the epoch and the bag, and of nothing that came before."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{bag_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch takes signed numbers


def epoch_order(ids: Sequence[str], seed: int, epoch: int) -> list[int]:
    """The order of the bags in an epoch. Leaving bags out does not change the order of the others.

    >>> everyone, some = epoch_order(["a", "b", "c", "d"], 0, 0), epoch_order(["a", "c", "d"], 0, 0)
    >>> ["abcd"[i] for i in everyone if i != 1] == ["acd"[i] for i in some]
    True
    """
    return sorted(range(len(ids)), key=lambda position: step_seed(seed, epoch, ids[position]))


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leave torch's global generator as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


# ----------------------------------------------------------------------------------------------------------- the loop


@dataclass
class _Run:
    model: MILModel
    optimiser: torch.optim.Optimizer
    history: History
    best: dict[str, Tensor] | None
    loader: Loader
    class_weights: tuple[float, ...] | None
    precision: str


def _train_epoch(run: _Run, train: Sequence[Bag], recipe: Recipe, seed: int, epoch: int) -> float:
    model, optimiser, total = run.model, run.optimiser, 0.0
    model.train()
    order = epoch_order(ids_of(train), seed, epoch)
    for step, bag in enumerate(run.loader.read(train, order)):
        torch.manual_seed(step_seed(seed, epoch, bag.id))
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(epoch, epoch * len(train) + step)
        optimiser.zero_grad(set_to_none=True)
        label = int(bag.label or 0)
        with _rounded(run.precision, model):
            loss = model.loss(_said(forward, model, bag), label)
        if run.class_weights is not None:
            loss = loss * run.class_weights[label]
        loss.backward()
        if recipe.clip is not None:
            clip_each([list(part.parameters()) for part in modules_of(model)], recipe.clip)
        optimiser.step()
        total += loss.item()
    return total / len(train)


def _rounded(precision: str, model: MILModel) -> AbstractContextManager[Any]:
    """Products in bfloat16, if asked; weights, sums over rows and the loss stay as they are."""
    if precision == PRECISIONS[0]:
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, torch.bfloat16)


def check_precision(precision: str) -> None:
    """Refuse a precision that nothing is trained in."""
    if precision not in PRECISIONS:
        raise OptionError(f"precision = {precision!r}: one of {', '.join(PRECISIONS)}.")


def _patience_is_over(history: History, recipe: Recipe) -> bool:
    """Whether the best epoch lies so far back; asked before each epoch, so that a run that goes on stops alike."""
    best = history.best_epoch
    return recipe.patience is not None and best is not None and len(history.valid_loss) - best >= recipe.patience


def modules_of(model: MILModel) -> list[nn.Module]:
    """The parts whose gradients are clipped apart: embedding, refinement, and the aggregator's children."""
    own = [part for part in model.aggregate.children() if any(True for _ in part.parameters())]
    return [model.embed, model.refine, *(own or [model.aggregate])]


def _look_at_valid(run: _Run, valid: Sequence[Bag], epoch: int) -> None:
    run.model.eval()
    with torch.no_grad():
        probabilities = _probabilities(run.model, run.loader.read(valid)).double()
    labels = torch.tensor([int(label or 0) for label in labels_of(valid)])
    chosen = probabilities[torch.arange(len(labels)), labels].clamp(min=1e-12)
    history = run.history
    history.valid_loss.append(-chosen.log().mean().item())
    history.valid_accuracy.append(accuracy(labels.numpy(), probabilities.numpy()))
    history.valid_auc.append(auc(labels.numpy(), probabilities.numpy()))
    if history.best_epoch == epoch:
        run.best = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


def _probabilities(model: MILModel, bags: Iterable[Bag]) -> Tensor:
    return torch.stack([_said(predict_bag, model, bag).logits.softmax(-1).cpu() for bag in bags])


def _said(ask: Callable[[MILModel, Tensor], Prediction], model: MILModel, bag: Bag) -> Prediction:
    """The model's prediction; what the model refuses is told with the bag's name."""
    try:
        return ask(model, bag.features)
    except BagError as error:
        raise type(error)(f"bag {bag.id!r}: {error}") from None


def _or_zero(value: float) -> float:
    return value if value == value else 0.0  # an AUC of one class is not a number


# -------------------------------------------------------------------------------------------------------- checkpoints


def _identity(
    model: MILModel, train: Sequence[Bag], valid: Sequence[Bag] | None, recipe: Recipe, seed: int,
    more: Any,
) -> dict[str, Any]:  # fmt: skip
    """What must be equal for a checkpoint to belong to this training."""
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    bags = [[ids_of(part), labels_of(part)] for part in (train, valid or [])]
    digest = hashlib.sha256(json.dumps([shapes, model.spec, bags, more], default=str).encode()).hexdigest()
    return {"recipe": json.loads(json.dumps(asdict(recipe))), "seed": seed, "model_and_bags": digest}


@dataclass
class _Checkpoint:
    """Weights, optimiser and history after an epoch, as safetensors: nothing in the file can run."""

    path: Path
    identity: dict[str, Any]

    def save(self, run: _Run, epoch: int) -> None:
        from safetensors.torch import save

        tensors = {f"model/{name}": tensor for name, tensor in run.model.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in (run.best or {}).items()}
        for index, state in run.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser/{index}/{key}": value for key, value in state.items() if value is not None}
        page = {"identity": self.identity, "epoch": epoch, "history": asdict(run.history)}
        content = save({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, {"scmil": json.dumps(page)})
        write_atomically(self.path, content)

    def load_into(self, run: _Run) -> int:
        """Bring the run to where the file says it was; the number of epochs done, 0 without a file."""
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return 0
        try:
            check_regular(self.path)
            with safe_open(self.path, framework="pt") as file:
                page = json.loads((file.metadata() or {})["scmil"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            if page["identity"] != self.identity:
                raise ModelFileError(
                    f"{self.path}: a checkpoint of another training (model, bags, recipe or seed differ). "
                    "Give this training another file, or delete that one."
                )
            parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimiser": {}}
            for name, tensor in tensors.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = tensor
            run.model.load_state_dict(parts["model"])
            run.best = parts["best"] or None
            run.history = History(**page["history"])
            _load_optimiser(run.optimiser, parts["optimiser"])
            return int(page["epoch"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(
                f"{self.path}: not a checkpoint of scmil ({error}). Delete it to start anew."
            ) from None


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
