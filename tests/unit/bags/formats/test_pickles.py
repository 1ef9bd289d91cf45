"""No pickle creates an object of numpy or torch, and sizes are checked before allocation."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scmil.bags.formats import open_bags, pickles
from scmil.bags.formats.pickles import load_arrays
from scmil.bags.formats.reading import load_pt
from scmil.errors import DataError

HOSTILE = Path(__file__).parents[3] / "data" / "hostile"
LITTLE = """
import resource, sys
from pathlib import Path
from scmil.errors import DataError
from scmil.bags.formats.reading import load_pt
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
for path in sys.argv[1:]:
    try:
        print(load_pt(Path(path)).shape)
    except DataError as error:
        print("DataError", error)
"""


def pt_of(path: Path, steps: bytes, **members: bytes) -> Path:
    """A .pt file with this pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", steps)
        for name, content in members.items():
            archive.writestr(f"archive/data/{name.removeprefix('_')}", content)
    return path


CRASHED = {
    "pointer.pt": "an array without a type or without values",
    "ndarray_call.pt": "calls an object that is not a function",
    "hexbomb.pt": "the encoding 'hex_codec'",
    "meta.pt": "_rebuild_meta_tensor_no_storage",
}


def test_files_that_crashed_an_earlier_version_are_rejected(tmp_path: Path) -> None:
    """The last has a dictionary whose key is a tuple in a tuple in a tuple; Python itself crashes
    over its hash.
    """
    deep = pt_of(tmp_path / "deep.pt", b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.")
    expected = CRASHED | {"deep.pt": "keys other than texts and numbers"}
    paths = [*(HOSTILE / name for name in CRASHED), deep]
    done = subprocess.run(
        [sys.executable, "-c", LITTLE, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line, (name, reason) in zip(done.stdout.splitlines(), expected.items(), strict=True):
        assert line.startswith("DataError")
        assert name in line
        assert reason in line


# ------------------------------------------------------------------------------------------ tensors


def storage_of(numbers: int, kind: str = "FloatStorage") -> bytes:
    parts = b"X\x07\0\0\0storage" + b"ctorch\n" + kind.encode() + b"\nX\x01\0\0\x000X\x03\0\0\0cpu"
    return b"(" + parts + b"\x8a\x08" + struct.pack("<q", numbers) + b"tQ"


def axes(*values: int) -> bytes:
    return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values) + b"t"


def tensor_of(
    numbers: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0
) -> bytes:
    start = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
    place = axes(offset)[1:-1]
    return start + storage_of(numbers) + place + axes(*shape) + axes(*strides) + b"\x89}tR."


def test_a_tensor_that_is_written_by_hand_is_read(tmp_path: Path) -> None:
    content = np.arange(6, dtype=np.float32).tobytes()
    tensor = load_pt(pt_of(tmp_path / "a.pt", tensor_of(6, (2, 3), (3, 1)), _0=content))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((6, (10**7, 1000), (0, 0)), "a decompression bomb"),
        ((6, (2, 4), (3, 1)), "but its storage has only 6 numbers"),
        ((6, (2, 3), (3, 1), 1), "but its storage has only 6 numbers"),
        ((6, (2, 3), (3, -1)), "strides of an array"),
        ((6, (-2, 3), (3, 1)), "shape of an array"),
        ((6, (2, 3), (3,)), "argument 2 is shorter"),
        ((10**12, (2, 3), (3, 1)), "needs 4000000000000 bytes, but has 24"),
        ((6, (2**62, 0), (0, 1)), "shape of an array"),
        ((6, (2**40, 0), (0, 1)), "instances without a feature"),
    ],
)
def test_a_tensor_lies_within_its_storage_and_is_not_larger_than_the_file(
    tmp_path: Path, arguments: Any, reason: str
) -> None:
    pt_of(tmp_path / "a.pt", tensor_of(*arguments), _0=bytes(24))
    with pytest.raises(DataError, match=r"a\.pt.*" + reason):
        open_bags(tmp_path)[0]


def test_a_tensor_with_stride_0_that_torch_wrote_is_read_if_it_is_small(tmp_path: Path) -> None:
    torch.save(torch.ones(1, 3).expand(4, 3), tmp_path / "a.pt")
    assert torch.equal(open_bags(tmp_path)[0].features, torch.ones(4, 3))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.ones(2, 3, device="meta"),
        torch.ones(2, 3, dtype=torch.complex64),
    ],
    ids=["sparse", "meta", "complex"],
)
def test_tensors_of_other_kinds_are_rejected_by_name(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save(tensor, tmp_path / "a.pt")
    with pytest.raises(DataError, match=r"a\.pt: .*Save the features as one tensor"):
        open_bags(tmp_path)[0]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_all_versions_of_torch_are_read(
    tmp_path: Path, zipped: bool, dtype: torch.dtype
) -> None:
    x = torch.randn(7, 5).to(dtype)
    kept = {
        "whole": x,
        "turned": x.T.contiguous().T,
        "part": x[2:5, 1:],
        "learned": torch.nn.Parameter(x),
    }
    for name, tensor in kept.items():
        torch.save(
            {"features": tensor}, tmp_path / f"{name}.pt", _use_new_zipfile_serialization=zipped
        )
        assert torch.equal(torch.as_tensor(load_pt(tmp_path / f"{name}.pt")), tensor)


@pytest.mark.parametrize("cut", [1, 20, 40, 200])
def test_a_file_of_old_torch_that_is_cut_short_is_rejected(tmp_path: Path, cut: int) -> None:
    torch.save(torch.ones(7, 5), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"a\.pt"):
        load_pt(tmp_path / "a.pt")


def test_an_archive_that_is_compressed_is_not_one_of_torch(tmp_path: Path) -> None:
    torch.save(torch.ones(2, 3), tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as whole,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in whole.namelist():
            small.writestr(name, whole.read(name))
    with pytest.raises(DataError, match=r"b\.pt: the member .* is compressed"):
        load_pt(tmp_path / "b.pt")


# ------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8", "i1", "<u2", ">i8", "?"])
def test_arrays_of_all_protocols_are_read(protocol: int, dtype: str) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    kept = [values, values.T, values[:0], values[0, 0]]
    content = pickle.dumps({"a": kept, "b": collections.OrderedDict(c=1.5)}, protocol)
    read = load_arrays(io.BytesIO(content))
    assert read["b"] == {"c": 1.5}
    for held, expected in zip(read["a"], kept, strict=True):
        assert held.array().dtype == expected.dtype
        assert np.array_equal(held.array(), expected)


@pytest.mark.parametrize(
    "array",
    [
        np.array([None, 1], object),
        np.array(["a", "bc"]),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], "M8[D]"),
        np.ones(2, complex),
        np.ones(2, np.longdouble),
    ],
    ids=["objects", "texts", "fields", "dates", "complex", "long"],
)
def test_arrays_of_anything_but_plain_numbers_are_not_made(array: Any) -> None:
    held = load_arrays(io.BytesIO(pickle.dumps(array, 2)))
    with pytest.raises(
        DataError, match=r"plain numbers are needed|without a type or without values"
    ):
        held.array()


def reconstructed(shape: tuple[int, ...], content: bytes) -> bytes:
    """A pickle of an array of float32 whose shape and bytes need not fit."""
    start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tC\x01btR(K\x01"
    kind = b"cnumpy\ndtype\n(X\x02\0\0\0f4\x89\x88tR(K\x03X\x01\0\0\0<NNN"
    kind += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    return start + axes(*shape) + kind + b"\x89C" + bytes([len(content)]) + content + b"tb."


def test_an_array_has_as_many_bytes_as_its_shape_says() -> None:
    good = load_arrays(io.BytesIO(reconstructed((2, 3), bytes(24))))
    assert good.array().shape == (2, 3)
    for shape in ((10**6, 1000), (2, 4), (1, 1), (2**61, 8), (-2, -3)):
        with pytest.raises(DataError, match=r"but has 24|integers from 0"):
            load_arrays(io.BytesIO(reconstructed(shape, bytes(24)))).array()


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (b"cnumpy\nndarray\n((K\x01tX\x02\0\0\0f8tR.", "calls an object that is not a function"),
        (b"c_codecs\nencode\n(X\x01\0\0\0aX\x09\0\0\0hex_codectR.", "hex_codec"),
        (
            b"cnumpy\ndtype\n(X\x02\0\0\0O8\x89\x88tRN}b.",
            "IndexError|sets a state|NoneType|KeyError",
        ),
        (b"c_codecs\nencode\n}X\x0c\0\0\0__defaults__Nsb.", "sets a state"),
        (b"ccollections\nOrderedDict\n]]K\x01aK\x02aa\x85R.", "makes a dictionary of a list"),
        (b"ccollections\nOrderedDict\n)\x81.", "an opcode that arrays do not need"),
        (b"(icollections\nOrderedDict\n.", "an opcode that arrays do not need"),
        (b"(ccollections\nOrderedDict\no.", "an opcode that arrays do not need"),
        (b"\x82\x01.", "an opcode that arrays do not need"),
        (b"\x8f.", "an opcode that arrays do not need"),
        (b"cnumpy\nload\n(X\x01\0\0\0atR.", "requests numpy.load"),
        (b"ctorch\nload\n(X\x01\0\0\0atR.", "requests torch.load"),
        (b"cnumpy.core.multiarray\nfromfile\n.", "requests numpy.core.multiarray.fromfile"),
        (b"ctorch._utils\n_rebuild_qtensor\n.", "requests torch._utils._rebuild_qtensor"),
        (b"X\x01\0\0\0aQ.", "an object that is not a torch storage"),
    ],
)
def test_what_arrays_do_not_need_is_not_run(steps: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        load_arrays(io.BytesIO(b"\x80\x02" + steps))


def test_a_text_is_not_made_bytes_again_and_again() -> None:
    once = b"h\x01h\x00h\x02\x86R0"
    steps = (
        b"\x80\x02X"
        + struct.pack("<I", 1000)
        + b"a" * 1000
        + b"q\x000c_codecs\nencode\nq\x010X\x06\0\0\0latin1q\x020"
    )
    assert load_arrays(io.BytesIO(steps + once + b"N.")) is None
    with pytest.raises(DataError, match="more bytes than it has"):
        load_arrays(io.BytesIO(steps + once * 1000 + b"N."))


def test_a_pickle_of_countless_steps_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "LEAST_READS", 1000)
    with pytest.raises(DataError, match="far more opcodes than arrays need"):
        load_arrays(io.BytesIO(b"\x80\x02" + b"]" * 10_000 + b"."))


def test_one_tile_a_million_times_is_not_stacked(tmp_path: Path) -> None:
    """A tile that is named again takes two bytes in the pickle, and all of its own in memory."""
    tile = {"feature": np.zeros(10_000, np.float32)}
    (tmp_path / "mDATA.pkl").write_bytes(pickle.dumps({"normal_1": [tile] * 100_000}, 4))
    with pytest.raises(DataError, match=r"mDATA\.pkl.*a decompression bomb"):
        open_bags(tmp_path, "dtfd", trust_pickle=True)[0]
    lists: list[Any] = [0.0]
    for _ in range(10):
        lists = [lists] * 10
    (tmp_path / "mDATA.pkl").write_bytes(pickle.dumps({"normal_1": [{"feature": lists}]}, 4))
    with pytest.raises(DataError, match=r"mDATA\.pkl.*a list instead of an array"):
        open_bags(tmp_path, "dtfd", trust_pickle=True)[0]
