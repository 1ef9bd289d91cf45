from __future__ import annotations

import torch

from scmil.models.aggregators.dsmil import DSMIL


def test_attention_is_the_similarity_to_the_critical_instance_of_each_class() -> None:
    net, h = DSMIL(6, 3), torch.randn(8, 6)
    prediction = net(h)
    scores, q = net.instance_classifier(h), net.query(h)
    similar = [torch.softmax(q @ q[critical] / 128**0.5, 0) for critical in scores.argmax(0).tolist()]
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
