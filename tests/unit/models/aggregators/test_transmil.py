from __future__ import annotations

import pytest
import torch

from scmil.models.aggregators.transmil import NystromAttention, PositionEncoding, TransMIL


def test_with_a_landmark_for_every_token_nystrom_is_softmax_attention() -> None:
    attend = NystromAttention(16, heads=2, landmarks=8, iterations=30).double().eval()
    attend.residual.weight.data.zero_()
    x = torch.randn(8, 16, dtype=torch.float64)
    q, k, v = attend.to_qkv(x).view(8, 3, 2, 8).permute(1, 2, 0, 3)
    exact = torch.softmax(q @ k.mT / 8**0.5, -1)
    expected = attend.to_out((exact @ v).permute(1, 0, 2).reshape(8, 16))
    torch.testing.assert_close(attend(x), expected, atol=1e-6, rtol=1e-4)
    row, seen = attend.first_token(x)
    torch.testing.assert_close(row, expected[0], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(seen, exact.mean(0)[0], atol=1e-6, rtol=1e-4)


def test_padding_goes_in_front_and_the_last_rows_are_kept() -> None:
    attend = NystromAttention(16, heads=2, landmarks=8).double().eval()
    x = torch.randn(13, 16, dtype=torch.float64)
    padded = torch.cat([torch.zeros(3, 16, dtype=torch.float64), x])
    torch.testing.assert_close(attend(x), attend(padded)[3:])


@pytest.mark.parametrize("tokens", [1, 5, 16, 45])  # padded by 7, 3, 0 and 3
def test_the_first_token_alone_has_the_output_and_the_gradients_of_all_tokens(tokens: int) -> None:
    attend = NystromAttention(16, heads=2, landmarks=8).double().eval()
    x = torch.randn(tokens, 16, dtype=torch.float64, requires_grad=True)
    wanted, probe = [x, *attend.parameters()], torch.randn(16, dtype=torch.float64)
    row, seen = attend.first_token(x)
    assert seen.shape == (tokens,)
    expected = attend(x)[0]
    torch.testing.assert_close(row, expected)
    ours, all_tokens = (
        torch.autograd.grad(probe @ output, wanted, materialize_grads=True)
        for output in (row, expected)
    )
    torch.testing.assert_close(ours, all_tokens)


def test_the_pseudo_inverse_inverts() -> None:
    attend = NystromAttention(16, heads=2, landmarks=8, iterations=20).double()
    a = torch.softmax(torch.randn(2, 8, 8, dtype=torch.float64), -1)
    torch.testing.assert_close(
        attend._pseudo_inverse(a) @ a, torch.eye(8, dtype=torch.float64).expand(2, 8, 8)
    )


def test_positions_are_a_square_of_the_tokens() -> None:
    encode, x = PositionEncoding(4), torch.randn(9, 4)
    out = encode(x)
    moved = x.clone()
    moved[0] += 100
    # 7 wide: a corner reaches the opposite one of a 3 x 3 square.
    assert not torch.allclose(encode(moved)[8], out[8])


def test_width_sets_heads_and_landmarks() -> None:
    assert TransMIL(256, 2).first.landmarks == 128
    with pytest.raises(ValueError, match="8 heads, and 20 does not divide"):
        TransMIL(20, 2)


def test_attention_adds_the_repeated_tokens_to_their_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, h = TransMIL(16, 2).eval(), torch.randn(5, 16)  # filled up to 3 x 3 tokens
    seen: list[torch.Tensor] = []
    attend = net.second.first_token

    def recorded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row, weights = attend(x)
        seen.append(weights)
        return row, weights

    monkeypatch.setattr(net.second, "first_token", recorded)
    attention = net(h).attention
    tokens = seen[0][1:].detach().clamp(min=0)  # without the class token
    expected = torch.stack([tokens[i::5].sum() for i in range(5)])
    torch.testing.assert_close(attention, expected / expected.sum(), atol=1e-6, rtol=1e-4)
