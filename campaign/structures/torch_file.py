"""Files of torch.save: unusual strides, sizes, devices, types and containers."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import Any

from structures.pickles import hostile_pickles, i, s, storage, tensor
from structures.values import SIZES, GeneratedFile, pack_archive, raw_zip, zeros


def pt_file(good: bytes, random: Random) -> GeneratedFile:
    """A file of torch.save with odd strides, sizes, devices, types or containers, or a pickle."""
    how = random.randrange(12)
    numbers = 18
    if how < 4:
        size = random.choice(
            (
                (3, 6),
                (10**9, 10),
                (2**40, 6),
                (2**31, 2**31),
                (0, 6),
                (3, 0),
                (-1, 6),
                (6,),
                (1,) * 40,
                (10**5, 10**5),
            )
        )
        stride = random.choice(
            ((6, 1), (0, 0), (0, 1), (-6, 1), (1, 3), (2**62, 1), (1,) * len(size))
        )
        kind = random.choice(
            (
                "FloatStorage",
                "HalfStorage",
                "DoubleStorage",
                "BoolStorage",
                "BFloat16Storage",
                "QInt8Storage",
                "ComplexFloatStorage",
                "UntypedStorage",
            )
        )
        device, offset = (
            random.choice(("cpu", "cpu", "meta", "cuda:0", "x")),
            random.choice((0, 0, 5, -1, 2**62)),
        )
        numbers = random.choice((18, 18, 0, 10**12, -1))
        pickled = tensor(
            storage(kind, numbers=numbers, device=device), size, stride[: len(size)], offset
        )
        words = f"size {size}, stride {stride}, {kind} of {numbers} on {device}, offset {offset}"
    elif how < 5:
        return _save_with_torch(random)
    elif how < 6:
        depth = random.choice((100, 5000, 200_000))
        pickled, words = b"]" * depth + b"a" * (depth - 1), f"lists {depth} deep"
    elif how < 7:
        count = random.choice((1000, 100_000))
        each = tensor(storage(), (3, 6), (6, 1))
        pickled = (
            b"}(" + b"".join(s(f"k{n}") + i(n) for n in range(count)) + s("features") + each + b"u"
        )
        words = f"a dictionary of {count}"
    else:
        words, pickled = random.choice(list(hostile_pickles(random).items()))
    content = [
        ("a/data.pkl", b"\x80\x02" + pickled + b"."),
        ("a/version", b"3\n"),
        ("a/byteorder", b"little"),
    ]
    content.append(("a/data/0", bytes(72)))
    if random.random() < 0.15:
        return b"\x80\x02" + pickled + b".", f"{words}, without an archive"
    if random.random() < 0.1:
        claimed = random.choice(SIZES)
        packed = [(name, inside, len(inside), 0) for name, inside in content[:-1]]
        return raw_zip(
            [*packed, ("a/data/0", zeros(claimed), claimed, 8)]
        ), f"{words}; {claimed} zeros as numbers"
    return pack_archive(content), words


def _save_with_torch(random: Random) -> GeneratedFile:
    """Unusual tensors, written by torch itself."""
    import torch

    kinds: dict[str, Callable[[], Any]] = {
        "meta": lambda: torch.empty(3, 6, device="meta"),
        "expanded": lambda: torch.zeros(1, 1).expand(random.choice((10**5, 10**9)), 6),
        "sparse": lambda: torch.sparse_coo_tensor(
            torch.tensor([[0], [0]]), torch.tensor([1.0]), (10**6, 10**6)
        ),
        "compressed rows": lambda: torch.eye(6).to_sparse_csr(),
        "quantised": lambda: torch.quantize_per_tensor(torch.rand(3, 6), 0.1, 0, torch.qint8),
        "complex": lambda: torch.zeros(3, 6, dtype=torch.complex64),
        "bool": lambda: torch.zeros(3, 6, dtype=torch.bool),
        "half": lambda: torch.zeros(3, 6, dtype=torch.float16),
        "whole": lambda: torch.full((3, 6), 2**62),
        "not finite": lambda: torch.full((3, 6), float(random.choice(("nan", "inf")))),
        "transposed": lambda: torch.zeros(6, 3).t(),
        "list": lambda: [torch.zeros(3, 6)] * 3,
        "dictionary": lambda: {
            "features": torch.zeros(3, 6),
            "coords": torch.full((3, 2), float("nan")),
        },
        "number": lambda: 5,
        "nothing": lambda: None,
        "parameter": lambda: torch.nn.Parameter(torch.zeros(3, 6)),
        "a copy of a view of much": lambda: torch.zeros(10**6)[:18].view(3, 6),
    }
    name = random.choice(list(kinds))
    torch.save(
        kinds[name](), content := io.BytesIO(), _use_new_zipfile_serialization=random.random() < 0.8
    )
    return content.getvalue(), f"torch saved: {name}"
