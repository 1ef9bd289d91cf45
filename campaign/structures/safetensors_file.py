"""Safetensors whose header does not match the data."""

from __future__ import annotations

import json
import struct
from random import Random

from structures.json_file import change_value, dump_json
from structures.values import GeneratedFile, short


def safetensors_file(good: bytes, random: Random) -> GeneratedFile:
    """Weights whose header does not match the data."""
    [length] = struct.unpack("<Q", good[:8])
    page, body = json.loads(good[8 : 8 + length]), good[8 + length :]
    how = random.randrange(5)
    if how == 0:
        declared = random.choice((0, 2**20, 2**31, 2**62, 2**64 - 1))
        return struct.pack("<Q", declared) + good[8:], f"a header of {declared} bytes"
    if how == 1:
        name = random.choice(list(page))
        page[name] = {
            **page[name],
            "data_offsets": random.choice(([0, 2**62], [-1, 4], [8, 0], [0, 0], [0])),
        }
        words = f"{name} at {page[name]['data_offsets']}"
    elif how == 2:
        name = random.choice(list(page))
        page[name] = {
            **page[name],
            "shape": random.choice(([2**62, 4], [0], [], [-1], [1] * 100, [2**32, 2**32])),
        }
        words = f"{name} of shape {short(page[name]['shape'])}"
    elif how == 3:
        for number in range(random.choice((1000, 50_000))):
            page[f"more{number}"] = {
                "dtype": "F32",
                "shape": [0],
                "data_offsets": [len(body), len(body)],
            }
        words = "many tensors"
    else:
        page, words = change_value(page, random)
    head = dump_json(page).encode("utf-8", "replace")
    return struct.pack("<Q", len(head)) + head + body, words
