"""Comparisons of networks with the golden numbers of tests/data/golden.

The weights are built from the authors' names and loaded with the tables of
`scmil.models.official_weights`, which `scmil import-model` uses too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from golden_numbers import GOLDEN, Golden, uniform
from torch import Tensor, nn

from scmil.models.aggregators import Prediction
from scmil.models.model import MILModel
from scmil.models.official_weights import Choices, convert
from scmil.models.official_weights.layout import Entry, Table
from scmil.models.official_weights.sparse_coding import layer_table
from scmil.models.streaming import call_model
from scmil.sparse_coding.released import ReleasedSparseCoding


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Run with or without oneDNN; the golden numbers were made without it."""
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=enabled)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)


@dataclass(frozen=True)
class Case:
    """A file, the aggregator it belongs to, and how its weights and groups are read."""

    file: str
    aggregator: str
    choices: Choices = field(default_factory=Choices)
    rename: Mapping[str, str] = field(default_factory=dict)  # prefixes of names in a checkpoint
    training: bool = False  # whether the model is in training mode

    def checkpoint(self, golden: Golden) -> dict[str, Tensor]:
        """The tensors with the names that they have in the authors' files."""
        renamed = {}
        for name, tensor in golden.tensors.items():
            first, dot, rest = name.partition(".")
            renamed[self.rename.get(first, first) + dot + rest] = tensor
        return renamed


DTFD_FILES = {"dimReduction": "dim_reduction", "attCls": "att_classifier"}
MINETS = {
    "bag": "mi-net",
    "instance": "mi-net-instance",
    "ds": "mi-net-ds",
    "rc": "mi-net-rc",
}
POOLINGS = {"max": "max", "ave": "mean", "lse": "lse"}
WITHOUT_OWN_LOSS = Choices(options={"diversity_weight": 0.0, "triplet_weight": 0.0})
CASES = [
    Case("abmil", "abmil"),
    Case("abmil_gated", "abmil-gated"),
    Case("scmil_abmil", "abmil"),
    Case("scmil_abmil_gated", "abmil-gated"),
    Case("scmil_abmil_sc", "abmil"),
    Case("scmil_abmil_gated_sc", "abmil-gated"),
    Case("dsmil_1class", "dsmil"),
    Case("dsmil_1class_linear_query", "dsmil"),
    Case("dsmil_2class", "dsmil"),
    Case("dsmil_2class_linear_query", "dsmil"),
    Case("dsmil_2class_passing_v", "dsmil"),
    Case("scmil_dsmil_sc_1class", "dsmil"),
    Case("scmil_dsmil_sc_2class", "dsmil"),
    Case("transmil", "transmil"),
    Case("transmil_small", "transmil"),
    Case("dtfd_afs", "dtfd-afs", rename=DTFD_FILES),
    Case("dtfd_maxmins", "dtfd-maxmin", rename=DTFD_FILES),
    Case("ilra_rank1", "ilra"),
    Case("ilra_rank4", "ilra"),
    *(
        Case(
            f"clam_{kind}{variant}",
            f"clam-{kind}",
            Choices(options={"dropout": 0.0, "subtyping": "subtyping" in variant}),
        )
        for kind in ("sb", "mb")
        for variant in ("", "_ungated", "_subtyping", "_subtyping_3classes")
    ),
    Case("clam_sb_svm", "clam-sb", Choices(options={"dropout": 0.0, "instance_loss": "svm"})),
    Case(
        "clam_mb_subtyping_svm",
        "clam-mb",
        Choices(options={"dropout": 0.0, "instance_loss": "svm", "subtyping": True}),
    ),
    Case("acmil_ga", "acmil"),
    Case("acmil_ga_1branch", "acmil"),
    Case("acmil_ga_mask_all", "acmil", Choices(options={"mask_ratio": 1.0}), training=True),
    Case("attrimil", "attrimil", Choices(options={"rank_weight": 0.0})),
    Case("attrimil_3classes", "attrimil", Choices(options={"rank_weight": 0.0})),
    Case("attrimil_rank_loss", "attrimil", training=True),
    Case("dgr_mil", "dgr-mil", WITHOUT_OWN_LOSS),
    Case("dgr_mil_512", "dgr-mil", WITHOUT_OWN_LOSS),
    Case(
        "dgr_mil_losses",
        "dgr-mil",
        Choices(options={"dropout": 0.0, "attention_dropout": 0.0}),
        training=True,
    ),
    *(
        Case(f"mi_net_{kind}_{theirs}", name, Choices(pooling=ours))
        for kind, name in MINETS.items()
        for theirs, ours in POOLINGS.items()
    ),
]
LAYERS = sorted(path.stem for path in GOLDEN.glob("sc_layer_*.npz"))
# Why our networks cannot give the numbers of these files.
NOT_OFFERED = {
    "dtfd_maxs": "DTFD's MaxS, which hands on the largest alone, is not offered",
    "transmil_nystrom_0_0_9": "the pinned Nyström library cuts the padding off the wrong end",
}


@dataclass
class Differences:
    """The largest differences: outputs relative to 1 + the largest magnitude, gradients relative
    to the largest gradient of the bag.
    """

    outputs: float = 0.0
    gradients: float = 0.0

    def add_output(self, actual: Tensor, expected: Tensor) -> None:
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        scale = 1 + expected.abs().max().item()
        self.outputs = max(self.outputs, (actual - expected).abs().max().item() / scale)

    def add_gradient(self, actual: Tensor, expected: Tensor, largest: float) -> None:
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        difference = (actual.double() - expected.double()).abs().max().item()
        self.gradients = max(self.gradients, difference / largest)


def compare_case(case: Case, dtype: torch.dtype = torch.float32) -> Differences:
    """Compare a network with the golden numbers of its authors' code."""
    golden = Golden(case.file)
    converted = convert(case.checkpoint(golden), case.aggregator, case.choices)
    model = converted.model.to(dtype).train(case.training)
    state = {name: tensor.clone() for name, tensor in model.named_buffers()}
    table = {
        theirs: converted.table[name]
        for theirs, name in zip(golden.names, case.checkpoint(golden), strict=True)
    }
    differences = Differences()
    for bag in golden.bags:
        x = place(golden.x(bag), model).to(dtype).requires_grad_()
        if case.file == "dgr_mil_losses":  # the centres start anew before every bag
            for name, tensor in model.named_buffers():
                tensor.copy_(state[name])
        prediction = call_model(model, x, golden.xy(bag))
        _compare_outputs(differences, golden, bag, model, prediction)
        loss = _loss(case, golden, bag, model, prediction)
        if (expected := loss_of(golden, bag)) is not None:
            differences.add_output(loss.detach().float(), expected)
            model.zero_grad()
            loss.backward()
            assert x.grad is not None
            gradient = x.grad[order(len(x))] if "dtfd" in case.file else x.grad
            _compare_gradients(differences, golden, bag, model, table, gradient)
    return differences


def _loss(case: Case, golden: Golden, bag: int, model: MILModel, prediction: Prediction) -> Tensor:
    """The loss, as far as the authors' code runs on the bag."""
    label = golden.label(bag)
    if case.file.startswith("clam") and golden.get("instance_loss", bag) is None:
        # Ours has an instance loss for bags of fewer than eight tiles, theirs fails.
        return nn.functional.cross_entropy(prediction.logits, torch.tensor(label))
    if case.file == "acmil_ga_mask_all":
        return nn.functional.cross_entropy(prediction.logits, torch.tensor(label))
    return model.loss(prediction, label)


def place(x: Tensor, model: nn.Module) -> Tensor:
    """The rows in the order in which DTFD's groups are consecutive, as in the golden numbers."""
    if type(getattr(model, "aggregate", None)).__name__ != "DTFD":
        return x
    placed = torch.empty_like(x)
    placed[order(len(x))] = x
    return placed


def order(n: int) -> Tensor:
    """The order in which DTFD shuffles n instances in evaluation."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def loss_of(golden: Golden, bag: int) -> Tensor | None:
    tiers = [golden.get(f"loss_tier{tier}", bag) for tier in (1, 2)]
    if tiers[0] is not None and tiers[1] is not None:
        return tiers[0] + tiers[1]
    if "total_loss" in golden.arrays:
        return torch.tensor(golden.arrays["total_loss"][bag])
    return golden.get("loss", bag)


def _compare_outputs(
    differences: Differences, golden: Golden, bag: int, model: MILModel, prediction: Prediction
) -> None:
    logits = prediction.logits.detach().float()
    if (expected := golden.get("logits", bag)) is not None:
        differences.add_output(_scores(logits, expected.numel()), expected.flatten())
    if (expected := golden.get("probability", bag)) is not None:
        probabilities = model.probabilities(logits)
        differences.add_output(probabilities[1:], expected.flatten())
    if (expected := golden.get("attention", bag)) is not None:
        expected = _our_attention(golden.name, expected)
        differences.add_output(prediction.attention.detach().float(), expected.flatten())
    for number, auxiliary in enumerate(prediction.auxiliary):
        actual = auxiliary.detach().float()
        if (expected := golden.get("branch_logits", bag)) is not None:
            differences.add_output(actual, expected[number])
        if (expected := golden.get("tier1_logits", bag)) is not None:
            differences.add_output(actual, expected[number])
        if (expected := golden.get("instance_logits", bag)) is not None:
            best = expected.amax(0)
            differences.add_output(_scores(actual, best.numel()), best)
        if (expected := golden.get(f"probability_level{number + 1}", bag)) is not None:
            differences.add_output(model.probabilities(actual)[1:], expected)


def _our_attention(file: str, attention: Tensor) -> Tensor:
    """The authors' attention in our form: one weight for each tile."""
    if file.startswith(("dsmil", "scmil_dsmil")):
        return attention.mean(1)  # ours is the mean over the streams
    if file.startswith(("clam", "acmil")):  # theirs is before the softmax
        scores = attention.reshape(-1, attention.shape[-1])
        return scores.softmax(1).mean(0)  # ours is the mean over classes or branches
    return attention[0, 0] if file.startswith("dgr") else attention  # row of the class token


def _scores(logits: Tensor, scores: int) -> Tensor:
    """One score s stands for the logits (0, s)."""
    return logits[1:] - logits[:1] if scores == 1 else logits


def _compare_gradients(
    differences: Differences,
    golden: Golden,
    bag: int,
    module: nn.Module,
    table: Table,
    gradient: Tensor,
) -> None:
    own = dict(module.named_parameters())
    gradients = {
        theirs: None
        if entry.name not in own or own[entry.name].grad is None
        else _to_theirs(own[entry.name].grad, entry, shape)  # type: ignore[arg-type]
        for (theirs, entry), shape in zip(table.items(), golden.shapes, strict=True)
    }
    known = [golden.arrays[f"grad_norms_{bag}"], golden.arrays[f"grad_sums_{bag}"]]
    largest = float(np.nanmax(known[0]))
    for number, (theirs, actual) in enumerate(gradients.items()):
        norm, total = (torch.tensor(values[number]) for values in known)
        if torch.isnan(norm):
            assert actual is None or not actual.any(), f"{theirs} is not in the authors' loss"
            continue
        assert actual is not None, f"{theirs} has no gradient"
        differences.add_gradient(actual.norm(), norm, largest)
        differences.add_gradient(actual.sum(), total, largest)
        for key in (f"grad_{bag}/{theirs}", f"gradhead_{bag}/{theirs}"):
            if key in golden.arrays:
                expected = torch.tensor(golden.arrays[key]).flatten()
                differences.add_gradient(actual.flatten()[: len(expected)], expected, largest)
    if (expected_x := golden.get("grad_x", bag)) is not None:
        expected_x = expected_x.flatten()
        differences.add_gradient(gradient.flatten()[: len(expected_x)], expected_x, largest)
    if (norm_x := golden.get("grad_x", f"{bag}_norm")) is not None:  # type: ignore[arg-type]
        differences.add_gradient(gradient.norm(), norm_x, largest)


def _to_theirs(gradient: Tensor, entry: Entry, shape: tuple[int, ...]) -> Tensor:
    """A gradient in the form of the authors' parameter."""
    if entry.form == "transpose":
        return gradient.T
    return gradient[1:] if entry.form == "second row" else gradient.reshape(shape)


def compare_layer(name: str) -> Differences:
    """Compare the released sparse coding layer with the golden numbers."""
    golden = Golden(name)
    arguments = golden.meta["arguments"]
    layer = ReleasedSparseCoding(arguments["L"], arguments["n_atoms"], arguments["T"])
    table = layer_table()
    layer.load_state_dict({table[name].name: value for name, value in golden.tensors.items()})
    differences = Differences()
    for bag in golden.bags:
        x = golden.x(bag).requires_grad_()
        codes = layer(x)
        probe = torch.tensor(uniform("sc/probe", tuple(codes.shape)), dtype=torch.float32)
        loss = (codes * probe).sum()
        for what, actual in (("codes", codes), ("lam", layer.network(x)), ("loss", loss)):
            expected = golden.get(what, bag)
            assert expected is not None
            differences.add_output(actual.detach(), expected)
        layer.zero_grad()
        loss.backward()
        assert x.grad is not None
        ordered = {name: table[name] for name in golden.names}
        _compare_gradients(differences, golden, bag, layer, ordered, x.grad)
    return differences


def largest_differences(
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, Differences]:
    """The largest differences of every file that our networks can be compared with."""
    found = {}
    for case in CASES:
        progress(case.file)
        found[case.file] = compare_case(case)
    for name in LAYERS:
        progress(name)
        found[name] = compare_layer(name)
    return found
