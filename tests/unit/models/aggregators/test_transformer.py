from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap

from scmil.errors import BagError
from scmil.models.aggregators import transformer
from scmil.models.aggregators.transformer import Transformer


def test_a_layer_is_torchs_pre_norm_encoder_layer() -> None:
    net = Transformer(16, 2, layers=1, heads=4, feedforward=24).double().eval()
    ours = net.layers[0]
    torchs = nn.TransformerEncoderLayer(
        16, 4, 24, activation="gelu", norm_first=True, batch_first=True
    )
    state = {
        "self_attn.in_proj_weight": ours.to_qkv.weight,
        "self_attn.in_proj_bias": ours.to_qkv.bias,
        "self_attn.out_proj.weight": ours.to_out.weight,
        "self_attn.out_proj.bias": ours.to_out.bias,
    }
    for theirs, own in (("linear1", "widen"), ("linear2", "narrow")):
        state |= {
            f"{theirs}.{part}": getattr(getattr(ours, own), part) for part in ("weight", "bias")
        }
    for number in (0, 1):
        state |= {
            f"norm{number + 1}.{part}": getattr(ours.norms[number], part)
            for part in ("weight", "bias")
        }
    torchs.load_state_dict(state)
    x = torch.randn(11, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x)[0], torchs.double().eval()(x[None])[0])


def test_the_attention_is_the_row_of_the_class_token_without_itself() -> None:
    net, h = Transformer(16, 2, layers=1, heads=2).double().eval(), torch.randn(7, 16).double()
    layer = net.layers[0]
    x = layer.norms[0](torch.cat([net.token, h]))
    q, k, _ = layer.to_qkv(x).view(8, 3, 2, 8).permute(1, 2, 0, 3)
    row = torch.softmax(q[:, :1] @ k.mT / 8**0.5, -1).mean(0)[0, 1:]
    torch.testing.assert_close(net(h).attention, row / row.sum())


def test_the_width_is_a_multiple_of_the_heads() -> None:
    with pytest.raises(ValueError, match="8 heads, and 20 does not divide"):
        Transformer(20, 2)


def test_a_bag_is_too_large_where_the_weights_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "MOST_STORED", 10)
    message = r"11 instances.*at most 10 instances are supported\. Set attention_dropout = 0"
    stored = Transformer(16, 2, attention_dropout=0.1)
    with pytest.raises(BagError, match=message):
        stored(torch.randn(11, 16))
    mapped = Transformer(16, 2).eval()
    with pytest.raises(BagError, match=message):
        vmap(lambda h: mapped(h).logits)(torch.randn(2, 11, 16))
    assert stored.eval()(torch.randn(11, 16)).logits.isfinite().all()
    assert Transformer(16, 2)(torch.randn(11, 16)).logits.isfinite().all()
