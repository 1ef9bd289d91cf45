"""TOML experiments: extreme values, large grids, deep tables."""

from __future__ import annotations

import json
import math
import tomllib
from random import Random
from typing import Any

from structures.json_file import Deep, change_value
from structures.values import DEPTHS, GeneratedFile


def toml_file(good: bytes, random: Random) -> GeneratedFile:
    """An experiment with extreme values, a large grid, or deeply nested tables."""
    page = tomllib.loads(good.decode())
    how = random.randrange(6)
    if how == 0:
        depth = random.choice(DEPTHS)
        return (
            good + b"\n[extra]\nx = " + b"[" * depth + b"]" * depth + b"\n",
            f"a list nested {depth} deep",
        )
    if how == 1:
        depth = random.choice(DEPTHS)
        return good + b"\n[" + b".".join([b"a"] * depth) + b"]\n", f"a table nested {depth} deep"
    if how == 2:
        values, keys = random.choice((2, 20, 1000)), random.choice((3, 6, 20))
        names = [
            "training.epochs",
            "training.lr",
            "protocol.seed",
            "protocol.repeats",
            "model.embed",
            "protocol.folds",
        ]
        names += [f"model.options.k{number}" for number in range(keys)]
        page["grid"] = {name: list(range(1, values + 1)) for name in names[:keys]}
        return _toml(page).encode(), f"a grid of {values} values to the power of {keys}"
    page, words = change_value(page, random)
    return _toml(page).encode("utf-8", "replace"), words


def _toml(page: Any) -> str:
    """Plain data as TOML with inline tables."""
    return (
        "\n".join(
            f"{json.dumps(str(key))} = {_toml_value(value)}" for key, value in dict(page).items()
        )
        + "\n"
    )


def _toml_value(value: Any) -> str:
    if isinstance(value, Deep):
        return "[" * value.depth + "]" * value.depth
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(str(k))} = {_toml_value(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return (
            "nan"
            if math.isnan(value)
            else ("inf" if value > 0 else "-inf")
            if math.isinf(value)
            else repr(value)
        )
    if value is None:
        return '""'
    return str(value) if isinstance(value, int) else json.dumps(str(value))
