from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scmil.models.aggregators.dsmil import DSMIL
from scmil.models.model import MILModel, build_model
from scmil.models.streaming import predict_bag


def test_attention_is_the_similarity_to_the_critical_instance_of_each_class() -> None:
    net, h = DSMIL(6, 3), torch.randn(8, 6)
    prediction = net(h)
    scores, q = net.instance_classifier(h), net.query(h)
    similar = [
        torch.softmax(q @ q[critical] / 128**0.5, 0) for critical in scores.argmax(0).tolist()
    ]
    torch.testing.assert_close(prediction.attention, torch.stack(similar).mean(0))
    torch.testing.assert_close(prediction.auxiliary[0], scores.max(0).values)


def test_two_classes_share_one_stream_unless_asked() -> None:
    assert DSMIL(6, 2).bag_classifier.out_features == 1
    assert DSMIL(6, 2, streams=2)(torch.randn(4, 6)).logits.shape == (2,)


def test_the_linear_map_is_the_original_convolution() -> None:
    net, h = DSMIL(6, 3), torch.randn(8, 6)
    convolution = torch.nn.Conv1d(3, 3, kernel_size=6)
    convolution.weight.data = net.bag_classifier.weight.view(3, 3, 6)
    convolution.bias.data = net.bag_classifier.bias
    q, critical = net.query(h), net.instance_classifier(h).argmax(0)
    A = torch.softmax(q @ q[critical].T / 128**0.5, 0)
    torch.testing.assert_close(net(h).logits, convolution((A.T @ h)[None])[0, :, 0])


def test_stable_initialisation_is_orthogonal() -> None:
    weight = DSMIL(256, 2).query[0].weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(128), atol=1e-5, rtol=0)


def test_the_classical_script_starts_as_torch_does() -> None:
    torch.manual_seed(0)
    expected = torch.nn.Linear(256, 1)
    torch.manual_seed(0)
    actual = DSMIL(256, 2, initialisation="default").instance_classifier
    assert torch.equal(actual.weight, expected.weight)
    assert torch.equal(actual.bias, expected.bias)


def test_values_are_passed_through_a_layer_of_their_own() -> None:
    net, h = DSMIL(6, 3, passing_v=True).eval(), torch.randn(8, 6)
    q, critical = net.query(h), net.instance_classifier(h).argmax(0)
    A = torch.softmax(q @ q[critical].T / 128**0.5, 0)
    values = torch.relu(net.values[1](h))
    expected = net.bag_classifier((A.T @ values).flatten())
    torch.testing.assert_close(net(h).logits, expected)
    model = MILModel(torch.nn.Identity(), torch.nn.Identity(), net)
    torch.testing.assert_close(predict_bag(model, h).logits, expected)


@pytest.mark.parametrize(("classes", "streams"), [(2, 2), (3, None)])
def test_the_loss_of_the_authors_is_one_sigmoid_per_class(
    classes: int, streams: int | None
) -> None:
    aggregator = {"name": "dsmil", "streams": streams}
    model = build_model(6, classes, aggregator, output="sigmoid", seed=0)
    prediction = model(torch.randn(8, 6))
    bag, best = (
        F.binary_cross_entropy_with_logits(logits, torch.eye(classes)[1])
        for logits in (prediction.logits, prediction.auxiliary[0])
    )
    torch.testing.assert_close(model.loss(prediction, 1), 0.5 * bag + 0.5 * best)


def test_unknown_options_raise() -> None:
    with pytest.raises(ValueError, match=r"initialisation = 'xavier'\. Known: orthogonal"):
        DSMIL(6, 2, initialisation="xavier")
