"""JSON: extreme values, repeated and deeply nested values."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from structures.values import COUNTS, DEPTHS, GeneratedFile, extreme_value, short

MOST_VALUES = 1_000_000  # in a JSON file


def json_file(good: bytes, random: Random) -> GeneratedFile:
    """JSON with extreme, repeated or deeply nested values."""
    page = json.loads(good)
    words = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        before, (page, description) = page, change_value(copy.deepcopy(page), random)
        if _size(page) > MOST_VALUES:  # a repeated value was repeated once more
            page = before
            break
        words.append(description)
    return dump_json(page).encode("utf-8", "surrogatepass"), "; ".join(words)


def _size(page: Any, known: dict[int, int] | None = None) -> int:
    """The number of values in the written file; a shared value is counted wherever it occurs.

    >>> many = [[1] * 100] * 1000
    >>> _size([many, many])
    202003
    """
    known = {} if known is None else known
    if isinstance(page, str | Deep):
        return 1 + (len(page) if isinstance(page, str) else page.depth) // 10
    if id(page) not in known and isinstance(page, dict | list):
        parts = page.values() if isinstance(page, dict) else page
        keys = sum(len(str(key)) for key in page) // 10 if isinstance(page, dict) else 0
        known[id(page)] = 1 + keys + sum(_size(part, known) for part in parts)
    return known.get(id(page), 1)


def dump_json(page: Any) -> str:
    """The content as JSON, which may contain `Deep` values."""
    if isinstance(page, Deep):
        return (
            '{"a":' * page.depth + "1" + "}" * page.depth
            if page.of_dicts
            else "[" * page.depth + "]" * page.depth
        )
    if isinstance(page, dict):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(str(key))}: {dump_json(value)}" for key, value in page.items()
            )
            + "}"
        )
    if isinstance(page, list) and not any(isinstance(part, list | dict | Deep) for part in page):
        return json.dumps(page)
    if isinstance(page, list):
        return "[" + ", ".join(map(dump_json, page)) + "]"
    return json.dumps(page)


class Deep:
    """A value nested more deeply than Python objects can be."""

    def __init__(self, depth: int, of_dicts: bool) -> None:
        self.depth, self.of_dicts = depth, of_dicts


def change_value(page: Any, random: Random) -> tuple[Any, str]:
    """The same content with one value changed, and a description of the change."""
    places = list(_places(page))
    if not places:
        return extreme_value(random), "the whole page"
    at = random.choice(places)
    parent = page
    for key in at[:-1]:
        parent = parent[key]
    key, how = at[-1], random.randrange(12)
    name = ".".join(map(str, at))
    value = parent[key]
    if how < 6:
        parent[key] = extreme_value(random)
    elif how < 7:
        parent[key] = Deep(random.choice(DEPTHS), random.random() < 0.5)
        return page, f"{name} nested {parent[key].depth} deep"
    elif how < 9:
        parent[key] = (
            [value] * random.choice(COUNTS)
            if not isinstance(value, list)
            else value * count_of(value, random)
        )
        return page, f"{name} repeated"
    elif how < 10 and isinstance(parent, dict):
        del parent[key]
        return page, f"without {name}"
    elif how < 11 and isinstance(parent, dict):
        for number in range(random.choice(COUNTS)):
            parent[f"{key}{number}"] = value
        return page, f"many of {name}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = value * random.choice((-1, 1e-6, 1e6, 10**9, 0.5))
    return page, f"{name} = {short(parent.get(key) if isinstance(parent, dict) else parent[key])}"


def count_of(value: Sequence[Any], random: Random) -> int:
    """How often to repeat a list without filling the memory."""
    return max(2, min(random.choice(COUNTS), 200_000 // max(len(value), 1)))


def _places(page: Any, at: tuple[Any, ...] = ()) -> Any:
    items = (
        page.items()
        if isinstance(page, dict)
        else enumerate(page)
        if isinstance(page, list)
        else ()
    )
    for key, value in itertools.islice(items, 60):
        yield (*at, key)
        yield from _places(value, (*at, key))
