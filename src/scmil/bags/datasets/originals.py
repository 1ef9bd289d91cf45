"""The published files of the benchmarks: UCI's MUSK, the pictures of Andrews et al. (2002), and
the collection of miproblems.org as the Julia package MIDatasets stores it.

Archives are read in memory, one member each. Nothing is unpacked to disk, so no member can be
written outside a folder.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from scmil.bags.datasets.table import Table, as_text, class_numbers, one_per_bag, positions
from scmil.bags.datasets.table_files import check_features, read_svm
from scmil.core.regular_files import read_regular
from scmil.core.safe_hdf5 import h5_array, opened_h5
from scmil.core.safe_io import check_expansion
from scmil.errors import DataError

MOST_BYTES = 256 * 2**20  # of one member, unpacked; the largest original has 4.5 MB


def read_original(path: Path, member: str) -> Table:
    """Read a data set from its original file, or from an archive (.zip, .tgz) with `member`."""
    if path.suffix == ".jld":
        return read_jld(path)
    try:
        if path.name.endswith((".tgz", ".tar.gz")):
            content = _from_tar(path, member)
        elif path.suffix == ".zip":
            content = _from_zip(path, member)
        else:
            content = read_regular(path)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"damaged, or not an archive ({error}). Download it again.") from None
    if content[:2] == b"\x1f\x9d":
        content = uncompress(content)
    return read_svm(content) if member.endswith(".svm") else read_uci(content)


def _from_tar(path: Path, member: str) -> bytes:
    with tarfile.open(path, "r:gz") as archive:
        for entry in archive:
            check_expansion(entry.offset_data + entry.size, path.stat().st_size, "the archive")
            if (
                entry.isfile()
                and f"/{entry.name}".endswith(f"/{member}")
                and entry.size <= MOST_BYTES
            ):
                file = archive.extractfile(entry)
                return file.read() if file else b""
    raise DataError(f"the archive has no file {member}. Download it again.")


def _from_zip(path: Path, member: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if (
                f"/{entry.filename}".endswith((f"/{member}", f"/{member}.Z"))
                and entry.file_size <= MOST_BYTES
            ):
                return archive.read(entry)
    raise DataError(f"the archive has no file {member}. Download it again.")


def read_uci(content: bytes) -> Table:
    """Read UCI's `clean1.data` or `clean2.data`: molecule, conformation, 166 integers, class.

    >>> musk = b"MUSK-188,188_1+1,42,-198,1.\\nMUSK-188,188_1+2,42,-191,1.\\n"
    >>> table = read_uci(musk + b"NON-MUSK-j,j_1,7,8,0.\\n")
    >>> table.ids, table.labels, table.features.shape
    (['MUSK-188', 'NON-MUSK-j'], [1, 0], (3, 2))
    """
    rows = [line.split(",") for line in as_text(content).splitlines() if line.strip()]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) < 4:
        raise DataError(
            "rows of different lengths, but each needs molecule, conformation, features and class."
        )
    try:
        features = check_features(np.array([row[2:-1] for row in rows], dtype=np.float64))
    except ValueError as error:
        raise DataError(f"a feature is not a number ({error}).") from None
    ids, bag = positions([row[0] for row in rows])
    labels, classes = class_numbers(one_per_bag("label", [row[-1] for row in rows], bag, ids))
    return Table(features, bag, labels, ids, classes=classes)


def read_jld(path: Path) -> Table:
    """Read a file of the Julia package JLD, which is HDF5: `X` has a reference to each bag, whose
    matrix (n, p) is stored by columns, and `y` has the labels.
    """
    import h5py

    try:
        with opened_h5(path) as file:
            labels = h5_array(file, "y").ravel()
            references = file["X"]
            if h5py.check_ref_dtype(references.dtype) is not h5py.Reference:
                raise DataError("'X' does not hold references to the bags.")
            bags = [h5_array(file, file[one].name).T for one in references[()].ravel().tolist()]
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise DataError(f"damaged, or not a file of JLD ({error}). Download it again.") from None
    if len(bags) != len(labels) or {bag.ndim for bag in bags} != {2}:
        raise DataError(f"{len(bags)} bags and {len(labels)} labels; one matrix per label needed.")
    if len({bag.shape[1] for bag in bags}) != 1:
        raise DataError("bags of different dimensions. Download it again.")
    numbers, classes = class_numbers([f"{float(label):g}" for label in labels])
    position = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    return Table(check_features(np.concatenate(bags)), position, numbers, classes=classes)


def uncompress(content: bytes) -> bytes:
    """Decompress a .Z file of the Unix program `compress`: LZW with growing codes.

    >>> uncompress(bytes.fromhex("1f9d9061c4081403"))
    b'abbbb'
    """
    longest, blocks = content[2] & 31, bool(content[2] & 128)
    if not 10 <= longest <= 16:
        raise DataError(f"a .Z file with codes of {longest} bits, but only 10 to 16 are supported.")
    words = [bytes([value]) for value in range(256)] + [b""] * blocks
    first_free, output, previous = len(words), [], b""
    width, at, group = 9, 24, 24  # in bits; `group` is where codes of this width start
    made = kept = 0
    while at + width <= 8 * len(content):
        piece = int.from_bytes(content[at // 8 : at // 8 + 4], "little")
        code, at = piece >> at % 8 & (1 << width) - 1, at + width
        clear = blocks and code == 256
        if clear:
            del words[first_free:]
            kept = 0
            previous = b""
        elif code > len(words) or (code == len(words) and not previous):
            raise DataError("a damaged .Z file. Download it again.")
        else:
            word = words[code] if code < len(words) else previous + previous[:1]
            if previous and len(words) < 1 << longest:
                words.append(previous + word[:1])
                kept += len(words[-1])
            output.append(word)
            made += len(word)
            if max(made, kept) > MOST_BYTES:
                raise DataError(
                    f"a .Z file that expands to more than {MOST_BYTES} bytes; it was not read."
                )
            previous = word
        needed = 9 if clear else min(longest, max(width, len(words).bit_length()))
        if needed != width or clear:
            # Codes are written in groups of eight, the last one padded.
            at += -(at - group) % (8 * width)
            width, group = needed, at
    return b"".join(output)
