"""Files of benchmarks, as their publishers or users would write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.io import savemat

from scmil.bags.bag import BagSet
from scmil.bags.datasets.table import Table


def instances(bags: BagSet) -> np.ndarray:
    return np.concatenate([bag.features.numpy() for bag in bags])


def save(bags: BagSet, folder: Path, name: str) -> Path:
    """Write bags as an .npz, .svm, .mat or UCI's .data file."""
    features, path = instances(bags).astype(float), folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    bag = np.repeat(np.arange(len(bags)), [len(bag.features) for bag in bags])
    labels = np.array(bags.labels)
    if path.suffix == ".npz":
        np.savez(path, X=features, bag=bag, y=labels)
    elif path.suffix == ".mat":
        savemat(path, dict(x=dict(data=features, nlab=labels[bag] + 1, ident=dict(milbag=bag + 1))))
    elif path.suffix == ".svm":
        rows = [
            " ".join(f"{i}:{value:.9g}" for i, value in enumerate(row, 1) if value)
            for row in features
        ]
        path.write_text(
            "".join(
                f"{i}:{b}:{2 * labels[b] - 1} {row}\n" for i, (b, row) in enumerate(zip(bag, rows))
            )
        )
    else:
        rows = [",".join(f"{value:g}" for value in row) for row in features]
        path.write_text(
            "".join(
                f"M{b},M{b}_{i},{row},{labels[b]}.\n" for i, (b, row) in enumerate(zip(bag, rows))
            )
        )
    return path


def toy(seed: int) -> BagSet:
    generator = np.random.default_rng(seed)
    features = generator.integers(-9, 9, (12, 5)).astype(np.float32)
    features[-1, -1] = 3  # a sparse file knows the dimension from its largest index
    return Table(features, np.repeat(np.arange(4), 3), [1, 1, 0, 0]).bags()


class _CodeWriter:
    """Writes LZW codes as the Unix program `compress` does: in groups of eight of one width."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.output = bytearray([0x1F, 0x9D, 0x80 | longest])
        self.group: list[int] = []
        self.reset()

    def reset(self) -> None:
        self.words = {bytes([value]): value for value in range(256)}
        self.free, self.width = 257, 9

    def write(self, code: int) -> None:
        self.group.append(code)
        if len(self.group) == 8:
            self.flush(self.width)

    def flush(self, size: int) -> None:
        bits = sum(code << i * self.width for i, code in enumerate(self.group))
        self.output.extend(bits.to_bytes(size, "little"))
        self.group.clear()

    def pad_group(self) -> None:
        if self.group:
            self.flush(self.width)

    def add_word(self, word: bytes) -> None:
        """Add a word to the table; a longer code first completes the group."""
        if self.free >= 1 << self.width and self.width < self.longest:
            self.pad_group()
            self.width += 1
        if self.free < 1 << self.longest:
            self.words[word] = self.free
            self.free += 1


def compress(content: bytes, longest: int = 16, clear_after: int | None = None) -> bytes:
    """Compress as the Unix program does; the table is cleared after `clear_after` bytes."""
    writer, word = _CodeWriter(longest), b""
    for position in range(len(content)):
        byte = content[position : position + 1]
        if word + byte in writer.words:
            word += byte
            continue
        writer.write(writer.words[word])
        writer.add_word(word + byte)
        if clear_after is not None and position > clear_after:
            writer.write(256)
            writer.pad_group()
            writer.reset()
            clear_after = None
        word = byte
    if word:
        writer.write(writer.words[word])
    writer.flush((len(writer.group) * writer.width + 7) // 8)
    return bytes(writer.output)
