from __future__ import annotations

import torch

from scmil.models.aggregators.dynamic import DynamicPooling


def test_the_probability_is_the_length_of_the_squashed_vector() -> None:
    net, h = DynamicPooling(5, 2), torch.randn(6, 5)
    b = torch.zeros(6)
    for _ in range(3):
        c = torch.softmax(b, 0)
        s = c @ h
        v = (s.norm() ** 2 / (1 + s.norm() ** 2)) * s / s.norm()
        b = b + h @ v
    prediction = net(h)
    torch.testing.assert_close(prediction.logits.softmax(-1)[1], v.norm())
    torch.testing.assert_close(prediction.attention, c)
