"""Compare networks and layers of ours with the golden numbers of `golden_cases`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from golden_cases import CASES, ENCODERS, LAYERS, Case
from golden_numbers import Differences, Golden, uniform
from torch import Tensor, nn

from scmil.models.aggregators import Prediction
from scmil.models.aggregators.rrt import RRTEncoder
from scmil.models.aggregators.s4mil import S4D
from scmil.models.model import MILModel
from scmil.models.official_weights import _to_ours, convert
from scmil.models.official_weights.layout import UNUSED, LayoutEntry, Table
from scmil.models.official_weights.rrt import encoder_table
from scmil.models.official_weights.s4mil import layer_table as state_space_table
from scmil.models.official_weights.sparse_coding import layer_table as sparse_coding_table
from scmil.models.streaming import call_model
from scmil.sparse_coding.released import ReleasedSparseCoding


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
        _compare_parts(differences, golden, bag, model, prediction)
    differences.unread = set(golden.arrays) - golden.arrays.read
    return differences


def _loss(case: Case, golden: Golden, bag: int, model: MILModel, prediction: Prediction) -> Tensor:
    """The loss, as far as the authors' code runs on the bag."""
    label = golden.label(bag)
    if case.file.startswith("clam") and golden.get("instance_loss", bag) is None:
        # Ours has an instance loss for bags of fewer than eight tiles, theirs fails.
        return nn.functional.cross_entropy(prediction.logits, torch.tensor(label))
    if case.file == "acmil_ga_mask_all":
        return nn.functional.cross_entropy(prediction.logits, torch.tensor(label))
    if golden.get("bin", bag) is not None:
        return survival_loss(golden, bag, prediction.logits)
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


def survival_loss(golden: Golden, bag: int, logits: Tensor) -> Tensor:
    """The discrete-time negative log-likelihood of Patch-GCN: logits of hazards in four bins."""
    at, censored = int(golden.arrays[f"bin_{bag}"]), bool(golden.arrays[f"censored_{bag}"])
    survive = F.logsigmoid(-logits).cumsum(0)  # log S
    if censored:
        return -survive[at]
    return -(survive[at - 1] if at else 0) - F.logsigmoid(logits[at])


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


def _compare_parts(
    differences: Differences, golden: Golden, bag: int, model: MILModel, prediction: Prediction
) -> None:
    """What the own losses of AttriMIL and DGR-MIL use, and the centres of DGR-MIL behind a loss."""
    if (expected := golden.get("attribute_score", bag)) is not None:  # ours are the highest
        differences.add_output(prediction.extras[1].detach().float(), expected[0].amax(1))
    if (expected := golden.get("lesion", bag)) is not None:
        differences.add_output(prediction.extras[1].detach().float(), expected[0])
    for place, name in enumerate(("normal_center", "positive_center")):
        if (expected := golden.get(name, bag)) is not None:
            centres = model.aggregate.centres
            assert isinstance(centres, Tensor)
            differences.add_output(centres[place].float(), expected[0])


def _our_attention(file: str, attention: Tensor) -> Tensor:
    """The authors' attention in our form: one weight for each tile."""
    if file.startswith(("dsmil", "scmil_dsmil")):
        return attention.mean(1)  # ours is the mean over the streams
    if file.startswith(("clam", "acmil")):  # theirs is before the softmax
        scores = attention.reshape(-1, attention.shape[-1])
        return scores.softmax(1).mean(0)  # ours is the mean over classes or branches
    if file.startswith("patch_gcn"):
        return attention.softmax(1)  # scores before the softmax
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
        if table[theirs] == UNUSED:  # zero by theory: the authors' code has rounding errors
            actual = torch.zeros(())
        assert actual is not None, f"{theirs} has no gradient"
        exact, size = actual.double(), norm.item()  # float32 sums lose digits in large matrices
        differences.add_gradient(exact.norm(), norm, size, largest)
        # The rounding errors of a sum are relative to the sum of the magnitudes.
        magnitude = max(largest, exact.abs().sum().item())
        differences.add_gradient(exact.sum(), total, magnitude, largest)
        for key in (f"grad_{bag}/{theirs}", f"gradhead_{bag}/{theirs}"):
            if key in golden.arrays:
                expected = torch.tensor(golden.arrays[key]).flatten()
                differences.add_gradient(actual.flatten()[: len(expected)], expected, size, largest)
    size = gradient.norm().item()
    if (expected_x := golden.get("grad_x", bag)) is not None:
        expected_x = expected_x.flatten()
        differences.add_gradient(gradient.flatten()[: len(expected_x)], expected_x, size, largest)
    if (norm_x := golden.get("grad_x", f"{bag}_norm")) is not None:  # type: ignore[arg-type]
        # In float32, as the stored norms: of 300 x 1 024 numbers it is 2.6e-5 off the exact one.
        differences.add_gradient(gradient.float().norm(), norm_x, size, largest)


def _to_theirs(gradient: Tensor, entry: LayoutEntry, shape: tuple[int, ...]) -> Tensor:
    """A gradient in the form of the authors' parameter."""
    if entry.form == "transpose":
        return gradient.T
    return gradient[1:] if entry.form == "second row" else gradient.reshape(shape)


def build_layer(golden: Golden) -> tuple[nn.Module, Table, dict[str, str]]:
    """A layer alone, the place of its weights, and the outputs that are compared, by method."""
    arguments = golden.meta["arguments"]
    if golden.name.startswith("sc_layer"):
        released = ReleasedSparseCoding(arguments["L"], arguments["n_atoms"], arguments["T"])
        return released, sparse_coding_table(), {"codes": "forward", "lam": "network"}
    if golden.name.startswith("rrt_encoder"):
        shapes = dict(zip(golden.names, golden.shapes, strict=True))
        encoder = RRTEncoder(arguments["mlp_dim"], **ENCODERS[golden.name])
        return encoder, encoder_table(shapes, "", ""), {"output": "forward"}
    state_space = S4D(arguments["d_model"], arguments["d_state"])
    return state_space, state_space_table("", ""), {"output": "forward"}


def compare_layer(name: str) -> Differences:
    """Compare a layer alone with the golden numbers: sparse coding, RRT's encoder, S4D."""
    golden = Golden(name)
    layer, table, outputs = build_layer(golden)
    own = {key: value.shape for key, value in layer.state_dict().items()}
    layer.load_state_dict(
        {
            table[name].name: _to_ours(value, table[name], own[table[name].name])
            for name, value in golden.tensors.items()
            if table[name] != UNUSED
        }
    )
    layer.eval()
    differences = Differences()
    for bag in golden.bags:
        x = golden.x(bag).requires_grad_()
        rows = x.flatten(0, -2)
        result = layer(rows)
        probe_name = f"{name.split('_')[0].removesuffix('d')}/probe"
        probe = torch.tensor(uniform(probe_name, tuple(result.shape)), dtype=torch.float32)
        terms = result * probe
        loss = terms.sum()
        for what, method in outputs.items():
            actual = result if method == "forward" else getattr(layer, method)(rows)
            if (expected := golden.get(what, bag)) is not None:
                differences.add_output(actual.detach(), expected.view_as(actual))
        if (kernel := golden.get("kernel", bag)) is not None:
            assert isinstance(layer, S4D)
            differences.add_output(layer.kernel(len(rows)).mT.detach(), kernel)
        expected = golden.get("loss", bag)
        assert expected is not None
        differences.add_output(loss.detach(), expected, terms.norm().item())
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
