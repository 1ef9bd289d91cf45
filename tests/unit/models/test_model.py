from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from scmil import ReleasedSparseCoding, SparseCoding, build_model
from scmil.errors import BagError, OptionError, UnknownNameError
from scmil.models import model as model_module
from scmil.models.aggregators import Prediction
from scmil.models.aggregators.rrt import RRTEncoder
from scmil.models.cost import count_parameters
from scmil.models.model import LinearRefine


def test_figure_one_is_embed_refine_aggregate() -> None:
    model = build_model(1024, 2, "abmil-gated", sparse_coding=True, seed=0)
    x = torch.randn(5, 1024)
    whole = model(x).logits
    torch.testing.assert_close(whole, model.aggregate(model.refine(model.embed(x))).logits)
    assert isinstance(model.refine, SparseCoding)


def test_the_embedding_of_a_cosine_dictionary_is_a_square() -> None:
    model = build_model(1024, 2, "transmil", sparse_coding=True)
    assert isinstance(model.refine, SparseCoding)
    assert model.refine.dim == 484
    random = build_model(1024, 2, "transmil", sparse_coding={"dictionary": "random"})
    assert isinstance(random.refine, SparseCoding)
    assert random.refine.dim == 512


@pytest.mark.parametrize(
    ("name", "dim"),
    [("dsmil", 300), ("ilra", 300), ("mi-net-ds", 300), ("abmil", 484), ("mi-net", 64)],
)
def test_sparse_coding_stands_after_the_embedding_and_on_raw_features_where_there_is_none(
    name: str, dim: int
) -> None:
    model = build_model(300, 2, name, sparse_coding=True)
    assert isinstance(model.refine, SparseCoding)
    assert model.refine.dim == dim


def test_the_control_has_the_width_and_the_input_of_sparse_coding() -> None:
    model = build_model(300, 2, "dsmil", refine="linear", sparse_coding={"atoms": 100, "layers": 7})
    assert isinstance(model.refine, LinearRefine)
    x = torch.randn(4, 300)
    assert model.refine(x).shape == (4, 100)
    torch.testing.assert_close(model.refine(x), model.refine(0.001 * x), atol=1e-4, rtol=1e-4)
    released = build_model(300, 2, "dsmil", refine="released")
    assert isinstance(released.refine, ReleasedSparseCoding)


def test_widths_that_are_given_have_biases_unless_they_are_refused() -> None:
    assert build_model(20, 2, "abmil", embed=[8]).embed[0].bias is not None  # type: ignore[index]
    assert build_model(20, 2, "abmil", embed={"widths": [8], "bias": False}).embed[0].bias is None  # type: ignore[index]
    assert build_model(20, 2, "abmil").embed[0].bias is None  # the authors' release


def test_a_seed_gives_the_same_model_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = build_model(20, 2, "abmil", seed=3), build_model(20, 2, "abmil", seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"aggregator": "abmill"}, UnknownNameError, "Did you mean 'abmil'"),
        ({"aggregator": {"hidden": 3}}, OptionError, "the name is not"),
        (
            {"embed": {"width": [3]}},
            OptionError,
            "embed: unknown width. It takes: widths, bias, glorot, activation, dropout",
        ),
        ({"classes": 1}, OptionError, "at least two classes"),
        ({"refine": "dense"}, OptionError, "Known: sparse-coding, linear, normalise, released"),
        ({"sparse_coding": {"atom": 3}}, OptionError, "sparse_coding: .*'atom'"),
        (
            {"aggregator": {"name": "abmil", "heads": 3}},
            OptionError,
            "It takes: dim, classes, hidden, gated",
        ),
    ],
)
def test_wrong_names_and_options_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_model(**{"dim": 20, "classes": 2, **options})


def test_infinite_features_are_counted_and_located() -> None:
    x = torch.zeros(5, 20)
    x[3, 1] = float("inf")
    with pytest.raises(BagError, match=r"1 of the bag's 5 instances .* the first is number 3"):
        build_model(20, 2, "mean")(x)


def test_large_finite_features_are_not_taken_for_infinite() -> None:
    model_module.check_bag(torch.full((4, 4), 3e38))


def test_whole_models_are_stacked_over_one_bag() -> None:
    models = [
        build_model(20, 2, "abmil-gated", sparse_coding={"atoms": 16}, embed=[9], seed=s)
        for s in range(3)
    ]
    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]
    x = torch.randn(6, 20)

    def logits(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(models[0], (parameters, buffers), (x,)).logits

    torch.testing.assert_close(
        vmap(logits)(parameters, buffers), torch.stack([model(x).logits for model in models])
    )


def test_every_arm_can_have_the_layers_view_of_its_input() -> None:
    x = 5 + 3 * torch.randn(4, 8)
    only = build_model(8, 2, "mean", refine="normalise", embed=[], seed=0)
    seen = only.refine(x)
    torch.testing.assert_close(seen.mean(1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.var(1, correction=0), torch.ones(4))
    assert count_parameters(only) == count_parameters(build_model(8, 2, "mean", embed=[], seed=0))


def test_other_seeds_give_other_weights_whatever_the_global_generator() -> None:
    torch.manual_seed(0)
    one, other = build_model(20, 2, "abmil", seed=3), build_model(20, 2, "abmil", seed=4)
    torch.manual_seed(1)
    again = build_model(20, 2, "abmil", seed=3)
    first, second, third = (model.aggregate.classifier.weight for model in (one, other, again))
    assert not torch.equal(first, second)
    assert torch.equal(first, third)


def test_the_loss_adds_the_mean_auxiliary_loss_with_its_weight() -> None:
    model = build_model(20, 2, "mean")
    logits = torch.tensor([[0.3, -1.0], [2.0, 0.5], [-0.7, 0.1]])
    prediction = Prediction(logits[0], torch.ones(1), (logits[1], logits[2]))
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 1, 1]), reduction="none")
    model.aggregate.loss_weights = (0.5, 3.0)  # type: ignore[assignment]
    torch.testing.assert_close(
        model.loss(prediction, 1), 0.5 * losses[0] + 3 * (losses[1] + losses[2]) / 2
    )


def test_sigmoid_output_gives_each_class_its_own_probability_and_loss() -> None:
    model = build_model(8, 3, {"name": "dsmil", "streams": 3}, output="sigmoid", seed=0)
    prediction = model(torch.randn(5, 8))
    assert torch.equal(model.probabilities(prediction.logits), prediction.logits.sigmoid())
    target = torch.tensor([0.0, 0.0, 1.0])
    halves = [
        torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
        for logits in (prediction.logits, prediction.auxiliary[0])
    ]
    assert torch.allclose(model.loss(prediction, 2), sum(halves) / 2)


def test_softmax_is_the_default_output_and_is_not_written_down() -> None:
    model = build_model(8, 2, "dsmil", seed=0)
    logits = torch.tensor([1.0, -2.0])
    assert torch.equal(model.probabilities(logits), logits.softmax(-1))
    assert model.spec is not None
    assert "output" not in model.spec
    with pytest.raises(OptionError, match=r"output = 'logistic'\. Known: softmax, sigmoid"):
        build_model(8, 2, output="logistic")


def test_an_embedding_has_an_activation_and_dropout() -> None:
    model = build_model(8, 2, "abmil", embed={"widths": [4], "activation": "gelu", "dropout": 0.1})
    assert [type(part).__name__ for part in model.embed.children()] == ["Linear", "GELU", "Dropout"]


@pytest.mark.parametrize(
    ("embed", "message"),
    [
        ({"activation": "swish"}, r"activation = 'swish'\. Known: relu, gelu, leaky-relu"),
        ({"dropout": 2.0}, r"dropout = 2\.0: a number from 0 to 1 is needed"),
    ],
)
def test_a_bad_embedding_is_an_error(embed: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build_model(8, 2, "abmil", embed={"widths": [4], **embed})


def test_the_re_embedding_of_rrt_stands_in_front_of_any_aggregator() -> None:
    options = {"atoms": 16, "kernel": 9, "summaries": 2}  # atoms are those of sparse coding
    model = build_model(20, 2, "dsmil", options, refine="rrt", seed=0)
    assert isinstance(model.refine, RRTEncoder)
    assert model.refine.layers[0].position.kernel_size == (9, 1)
    assert model.aggregate.instance_classifier.in_features == 20
    assert model(torch.randn(70, 20)).logits.shape == (2,)
    assert build_model(20, 2, "abmil", refine="rrt").aggregate.classifier.in_features == 512
