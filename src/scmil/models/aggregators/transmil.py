"""TransMIL: Nyström attention over the bag and a class token, Shao et al. (2021)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register


class ResidualConvolution(nn.Conv2d):
    """A depthwise convolution along the sequence: one kernel for each head.

    Zeros are appended before the convolution, not by it: with implicit padding, torch 2.13 with
    oneDNN on a CPU returns a wrong weight gradient for some lengths (256 and 4096 among them).
    """

    def __init__(self, heads: int, kernel: int) -> None:
        super().__init__(heads, heads, (kernel, 1), groups=heads, bias=False)

    def forward(self, v: Float[Tensor, "*b h t e"]) -> Float[Tensor, "*b h t e"]:
        margin = self.kernel_size[0] // 2
        return super().forward(F.pad(v, (0, 0, margin, margin)))

    def at(self, v: Float[Tensor, "h t e"], place: int) -> Float[Tensor, "h 1 e"]:
        """The convolution at one place of the sequence."""
        first = place - self.kernel_size[0] // 2
        start, end = max(0, first), min(v.shape[1], first + self.kernel_size[0])
        kernel = self.weight[:, 0, start - first : end - first, 0]  # (heads, width)
        return kernel[:, None] @ v[:, start:end]


class NystromAttention(nn.Module):
    """Self-attention through landmarks: `softmax(q k~^T) pinv(softmax(q~ k~^T)) softmax(q~ k^T) v`,
    O(n) in length.

    Landmarks q~, k~ are means of equal segments; the sequence is padded with zeros in front to a
    multiple of their number, and the zeros are not masked. The pseudo-inverse takes six steps of a
    third-order iteration, and a depthwise convolution of v (33 wide) is added. Release 0.0.9 of the
    library that TransMIL pins cuts the padding off the wrong end; here the last n rows are kept.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        landmarks: int,
        iterations: int = 6,
        kernel: int = 33,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.heads, self.landmarks, self.iterations = heads, landmarks, iterations
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.residual = ResidualConvolution(heads, kernel)

    def forward(self, x: Float[Tensor, "t d"]) -> Float[Tensor, "t d"]:
        """Returns the output of every token."""
        length, dim = x.shape
        x = self._pad(x)
        # Each (heads, t, d / heads).
        q, k, v = self.to_qkv(x).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        q = q / math.sqrt(q.shape[-1])
        q_marks, k_marks = (part.unflatten(1, (self.landmarks, -1)).mean(2) for part in (q, k))
        to_marks = torch.softmax(q @ k_marks.mT, dim=-1)
        from_marks = torch.softmax(q_marks @ k.mT, dim=-1)
        # From the right: the product of all tokens with the inverse is never made.
        pooled = self._inverse(q_marks, k_marks) @ (from_marks @ v)
        out = to_marks @ pooled + self.residual(v)
        return self.to_out(out.permute(1, 0, 2).reshape(-1, dim)[-length:])

    def first_token(
        self, x: Float[Tensor, "t d"]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " t"]]:
        """Returns the output of the first token alone, and its attention to each.

        The other tokens are keys and values: their queries, which are used only as means, and their
        outputs are not computed. It takes a third of the time of all tokens.
        """
        length, dim = x.shape
        x = self._pad(x)
        at = len(x) - length  # the place of the first token behind the padding
        weight_q, weight_kv = self.to_qkv.weight.split((dim, 2 * dim))
        k, v = F.linear(x, weight_kv).view(len(x), 2, self.heads, -1).permute(1, 2, 0, 3)
        # Means of queries are queries of means: the map is linear.
        rows = torch.cat([x[at : at + 1], x.unflatten(0, (self.landmarks, -1)).mean(1)])
        q = F.linear(rows, weight_q).view(len(rows), self.heads, -1).transpose(0, 1)
        q, q_marks = (q / math.sqrt(q.shape[-1])).split((1, self.landmarks), dim=1)
        k_marks = k.unflatten(1, (self.landmarks, -1)).mean(2)
        weights = torch.softmax(q @ k_marks.mT, dim=-1) @ self._inverse(q_marks, k_marks)
        from_marks = torch.softmax(q_marks @ k.mT, dim=-1)
        out = weights @ (from_marks @ v) + self.residual.at(v, at)
        with torch.no_grad():
            seen = (weights @ from_marks).mean(0)[0, at:]
        return self.to_out(out.flatten()), seen

    def _pad(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, -len(x) % self.landmarks, 0))

    def _inverse(self, q_marks: Tensor, k_marks: Tensor) -> Tensor:
        return self._pseudo_inverse(torch.softmax(q_marks @ k_marks.mT, dim=-1))

    def _pseudo_inverse(self, a: Tensor) -> Tensor:
        # The two norms are taken over all heads together, as in the original.
        z = a.mT / (a.sum(-1).max() * a.sum(-2).max())
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        for _ in range(self.iterations):
            az = a @ z
            z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
        return z


class PositionEncoding(nn.Module):
    """PPEG: arranges the tokens in a square, and adds depthwise convolutions of 7, 5 and 3.

    The three are one convolution of 7 with the sum of the kernels. The tokens are passed with their
    channels last, as they are in memory. Together this takes a third of the time.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(dim, dim, k, padding=k // 2, groups=dim) for k in (7, 5, 3)
        )

    def forward(self, x: Float[Tensor, "t d"]) -> Float[Tensor, "t d"]:
        side, dim = math.isqrt(len(x)), x.shape[1]
        kernel, bias = x.new_zeros(()), x.new_zeros(())
        for convolution, margin in zip(self.convolutions, (0, 1, 2), strict=True):
            assert isinstance(convolution, nn.Conv2d)
            assert convolution.bias is not None
            kernel = kernel + F.pad(convolution.weight, (margin,) * 4)
            bias = bias + convolution.bias
        square = x.reshape(1, side, side, dim).permute(0, 3, 1, 2)
        added = F.conv2d(square, kernel, bias, padding=3, groups=dim)
        return x + added.permute(0, 2, 3, 1).reshape(-1, dim)


@register("transmil", "Nyström transformer with positions")
class TransMIL(nn.Module):
    """Pads the bag to a square, adds a class token, and applies Nyström attention twice, with a
    position encoding in between.

    tokens -> `x + Nystrom(norm(x))` -> PPEG on the square -> `x + Nystrom(norm(x))` -> norm ->
    class token -> linear. Eight heads, dim // 2 landmarks, no feed-forward sub-layer. The square is
    filled with the first tokens again, and positions follow the order of the bag, which therefore
    matters. The embedding has a bias; with sparse coding the width is that of the codes. Attention:
    the class token's row in the second layer, negative parts of the approximation cut off, repeated
    tokens added to their originals.
    """

    permutation_invariant = False
    embedding = Embedding(widths=(512,))

    def __init__(self, dim: int, classes: int, heads: int = 8) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(
                f"TransMIL divides its width by {heads} heads, and {dim} does not divide. "
                "Use a multiple."
            )
        self.token = nn.Parameter(torch.randn(1, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.first, self.second = (
            NystromAttention(dim, heads, landmarks=max(1, dim // 2)) for _ in range(2)
        )
        self.position = PositionEncoding(dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        n = len(h)
        side = math.isqrt(n - 1) + 1
        repeated = torch.arange(side * side, device=h.device) % n
        x = torch.cat([self.token, h[repeated]])
        x = x + self.first(self.norms[0](x))
        x = torch.cat([x[:1], self.position(x[1:])])
        mixed, seen = self.second.first_token(self.norms[1](x))  # no other token is read
        logits = self.classifier(self.norms[2](x[0] + mixed))
        share = h.new_zeros(n).index_add(0, repeated, seen[1:].detach().clamp(min=0)) + 1e-12
        return Prediction(logits, share / share.sum())
