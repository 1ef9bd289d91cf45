"""HDF5 files in which one data set or attribute is replaced."""

from __future__ import annotations

import contextlib
import io
import math
import zlib
from random import Random
from typing import Any

from structures.values import (
    EXTREME_FLOATS,
    EXTREME_INTEGERS,
    SIZES,
    GeneratedFile,
    short,
    zlib_zeros,
)


def h5_file(good: bytes, random: Random) -> GeneratedFile:
    """A valid file with another type, chunk, filter, link, count or value of one data set."""
    import h5py

    content = io.BytesIO(good)
    with h5py.File(content, "r+") as file:
        names: list[str] = []
        file.visititems(
            lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None
        )
        name = random.choice(sorted(names)) if names else "features"
        words = random.choice(H5_CHANGES)(file, name, random)
    return content.getvalue(), f"{name}: {words}"


def _replace_dataset(file: Any, name: str, **how: Any) -> Any:
    old = file.get(name)
    kept = dict(old.attrs) if old is not None else {}
    if old is not None:
        del file[name]
    made = file.create_dataset(name, **how)
    for key, value in kept.items():
        made.attrs[key] = value
    return made


def _h5_bomb(file: Any, name: str, random: Random) -> str:
    """Zeros, compressed once, twice or three times."""
    import h5py

    times, size = random.choice((1, 2, 2, 3)), random.choice(SIZES)
    width = file[name].shape[-1] if name in file and file[name].shape else 4
    kept = dict(file[name].attrs)
    # Sometimes far more than the data set declares.
    rows = random.choice((size // (4 * width), size // (4 * width), 8))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((rows, width))
    for _ in range(times):
        plist.set_deflate(1)
    del file[name]
    made = h5py.h5d.create(
        file.id,
        name.encode(),
        h5py.h5t.NATIVE_FLOAT,
        h5py.h5s.create_simple((rows, width)),
        _create_parents(plist)[0],
        _create_parents(plist)[1],
    )
    packed = zlib_zeros(size)
    for _ in range(times - 1):
        packed = zlib.compress(packed, 9)
    h5py.Dataset(made).id.write_direct_chunk((0, 0), packed)
    for key, value in kept.items():
        file[name].attrs[key] = value
    return f"{size} zeros, packed {times} times, in {rows} rows"


def _create_parents(plist: Any) -> tuple[Any, Any]:
    import h5py

    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    return plist, links


def _h5_huge(file: Any, name: str, random: Random) -> str:
    """A data set that declares a huge shape and contains no data."""
    shape = random.choice(
        ((2**31, 4), (2**40, 6), (10**9, 1024), (1, 2**40), (2**62, 1), (0, 6), (6, 0))
    )
    chunks = random.choice((None, True)) if 0 not in shape else None
    try:
        _replace_dataset(
            file, name, shape=shape, dtype=random.choice(("f4", "f2", "f8", "i8")), chunks=chunks
        )
    except (ValueError, OSError, OverflowError):
        _replace_dataset(file, name, shape=(2**31, 4), dtype="f4", chunks=(1, 4))
    return f"shape {shape}, chunks {chunks}"


def _h5_type(file: Any, name: str, random: Random) -> str:
    """Another type of numbers, or no numbers."""
    import h5py
    import numpy as np

    shape = file[name].shape or (3,)
    kind: Any = random.choice(
        (
            "f2",
            "f4",
            "f8",
            "i1",
            "u8",
            "i8",
            "?",
            "S10",
            "c16",
            "compound",
            "vlen",
            "text",
            "ref",
            "enum",
            "V8",
            "array",
            ">f4",
        )
    )
    types = {
        "compound": np.dtype([("a", "f4"), ("b", "i8")]),
        "vlen": h5py.vlen_dtype("f4"),
        "text": h5py.string_dtype(),
        "ref": h5py.ref_dtype,
        "enum": h5py.enum_dtype({"a": 1}),
        "array": np.dtype((np.float32, (6,))),
    }
    _replace_dataset(file, name, shape=shape, dtype=types.get(kind, kind))
    return f"type {kind}"


def _h5_shape(file: Any, name: str, random: Random) -> str:
    """Another number of axes, rows or columns."""
    import numpy as np

    shape = random.choice(
        (
            (),
            (1,),
            (6,),
            (3, 6, 1),
            (1, 3, 6),
            (0,),
            (0, 6),
            (1, 1),
            (2, 10**6),
            (200_000, 2),
            (1,) * 8,
        )
    )
    _replace_dataset(
        file,
        name,
        data=np.ones(shape, file[name].dtype if file[name].dtype.kind in "fiu" else "f4"),
    )
    return f"shape {shape}"


def _h5_values(file: Any, name: str, random: Random) -> str:
    """Extreme values."""
    import numpy as np

    values = np.array(file[name][()])
    if values.dtype.kind not in "fiu" or not values.size:
        return "as it was"
    chosen = random.choice(
        (
            float("nan"),
            float("inf"),
            -float("inf"),
            1e30,
            -1e30,
            2**62,
            -(2**62),
            2**31,
            -1,
            0,
            1e-300,
        )
    )
    kind = random.choice((values.dtype, np.dtype("f8"), np.dtype("i8")))
    with np.errstate(all="ignore"):
        values = values.astype(kind)
        odd = (
            np.array(chosen, "f8").astype(kind)
            if kind.kind == "f" or math.isfinite(chosen)
            else np.array(-1, kind)
        )
    if random.random() < 0.5:
        values.flat[random.randrange(values.size)] = odd
    else:
        values[...] = odd
    _replace_dataset(file, name, data=values)
    return f"{chosen} as {kind}"


def _h5_link(file: Any, name: str, random: Random) -> str:
    """A link instead of a data set."""
    import h5py

    kind = random.choice(
        (
            "soft",
            "soft itself",
            "external",
            "external itself",
            "virtual",
            "external storage",
            "group",
        )
    )
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    if kind == "soft":
        file[name] = h5py.SoftLink("/nowhere")
    elif kind == "soft itself":
        file[name] = h5py.SoftLink(f"/{name}")
    elif kind.startswith("external") and kind != "external storage":
        file[name] = h5py.ExternalLink("/etc/passwd" if kind == "external" else ".", "/features")
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape=shape or (1,), dtype=dtype)
        if shape:
            layout[...] = h5py.VirtualSource("elsewhere.h5", "features", shape=shape)
        file.create_virtual_dataset(name, layout)
    elif kind == "external storage":
        file.create_dataset(
            name, shape=shape or (1,), dtype="u1", external=[("/etc/passwd", 0, 10**6)]
        )
    else:
        file.create_group(name)
    return f"a link: {kind}"


def _h5_attribute(file: Any, name: str, random: Random) -> str:
    """Another value or type of an attribute."""
    import h5py
    import numpy as np

    one = file[name] if random.random() < 0.5 and file[name].attrs else file
    known = list(one.attrs)
    key = random.choice(known) if known else "name"
    value: Any = random.choice(
        (
            *EXTREME_INTEGERS[:20],
            *EXTREME_FLOATS,
            "",
            "x",
            "A" * 60_000,
            b"\xff\xfe",
            np.zeros((3, 3)),
            np.array([1e300, np.nan]),
            np.zeros(0),
            h5py.Empty("f4"),
            np.array(["a", "b"], dtype=h5py.string_dtype()),
            True,
            '{"slide_mpp": "x"}',
            '{"slide_mpp": NaN, "side_level0": -1}',
            '{"side_level0": 1e308}',
            '{"side_level0": 0}',
            "[" * 5000,
            "[]",
            "null",
            '{"slide_size": [1e12, 1e12], "side_level0": 1e-9}',
            '{"encoder": {"a": []}, "mpp": [1]}',
        )
    )
    with contextlib.suppress(KeyError):
        del one.attrs[key]
    try:
        one.attrs[key] = value
    except (TypeError, ValueError, OverflowError, OSError, RuntimeError):
        one.attrs[key] = str(value)[:1000].replace("\0", "")
    return f"attribute {key} = {short(value)}"


def _h5_nested(file: Any, name: str, random: Random) -> str:
    """Groups in groups, or many of them."""
    how = random.randrange(3)
    if how == 0:
        depth, place = random.choice((10, 300, 2000)), file
        for _ in range(depth):
            place = place.create_group("g")
        return f"groups {depth} deep"
    if how == 1:
        count = random.choice((100, 5000))
        for number in range(count):
            file.create_group(f"more{number}")
        return f"{count} groups"
    for number in range(count := random.choice((10, 1000))):
        file.attrs[f"more{number}"] = number
    return f"{count} attributes"


def _h5_chunks(file: Any, name: str, random: Random) -> str:
    """Chunks that do not fit the data, with filters of all kinds."""
    import numpy as np

    data = np.array(file[name][()])
    if data.ndim == 0 or data.dtype.kind not in "fiu" or not data.size:
        return "as it was"
    chunks = tuple(random.choice((1, size, 2 * size + 1, 1000)) for size in data.shape)
    how = random.choice(
        (
            {"compression": "gzip"},
            {"compression": "lzf"},
            {"shuffle": True, "compression": 9},
            {"fletcher32": True},
            {"scaleoffset": 3},
        )
    )
    if "scaleoffset" in how and data.dtype == np.float16:
        how = {"shuffle": True}
    _replace_dataset(
        file,
        name,
        shape=data.shape,
        dtype=data.dtype,
        chunks=chunks,
        maxshape=(None,) * data.ndim,
        **how,
    )[...] = data
    return f"chunks {chunks}, {how}"


H5_CHANGES = (
    _h5_bomb,
    _h5_bomb,
    _h5_huge,
    _h5_type,
    _h5_shape,
    _h5_values,
    _h5_values,
    _h5_link,
    _h5_attribute,
    _h5_attribute,
    _h5_attribute,
    _h5_nested,
    _h5_chunks,
)
