from __future__ import annotations

import torch

from scmil.models.aggregators.minet import (
    DeeplySupervisedMINet,
    InstanceMINet,
    MINet,
    ResidualMINet,
)


def test_instance_probability_is_the_maximum_of_instance_probabilities() -> None:
    net, h = InstanceMINet(5, 2).eval(), torch.randn(7, 5)
    expected = torch.sigmoid(net.classifier(h)).max()
    torch.testing.assert_close(net(h).logits.softmax(-1)[1], expected)


def test_mean_pools_probabilities_not_scores() -> None:
    net, h = InstanceMINet(5, 2, pooling="mean").eval(), 5 * torch.randn(7, 5)
    torch.testing.assert_close(
        net(h).logits.softmax(-1)[1], torch.sigmoid(net.classifier(h)).mean()
    )


def test_deep_supervision_predicts_the_mean_probability() -> None:
    net = DeeplySupervisedMINet(5, 3).eval()
    prediction = net(torch.randn(7, 5))
    mean = torch.stack(prediction.auxiliary).softmax(-1).mean(0)
    torch.testing.assert_close(prediction.logits.softmax(-1), mean)
    assert len(prediction.auxiliary) == 3


def test_widths_are_those_of_the_authors() -> None:
    assert [layer.out_features for layer in DeeplySupervisedMINet(166, 2).tapped.layers] == [
        256,
        128,
        64,
    ]
    assert [layer.out_features for layer in ResidualMINet(166, 2).tapped.layers] == [128, 128, 128]
    assert MINet.embedding.widths == (256, 128, 64)
    assert MINet(64, 2).classifier.out_features == 1


def test_dropout_falls_on_the_taps_and_not_on_the_next_layer() -> None:
    net = ResidualMINet(5, 2, dropout=1.0)
    bags, _ = net.tapped(torch.randn(4, 5))
    assert all((bag == 0).all() for bag in bags)
    net.tapped.dropout.p = 0.0
    bags, _ = net.tapped(torch.randn(4, 5))
    assert all((bag > 0).any() for bag in bags)


def test_keras_initialisation() -> None:
    net = MINet(64, 2)
    assert (net.classifier.bias == 0).all()
    assert net.classifier.weight.abs().max() <= (6 / 65) ** 0.5
