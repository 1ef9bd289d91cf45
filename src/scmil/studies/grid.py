"""Expand the tables of an experiment file: methods times the choices of its grid are the runs."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scmil.core.limits import MOST_CELLS
from scmil.studies.config import DEFAULTS, KEYS, LOCALISATION, Table, as_table
from scmil.studies.problems import MOST_LISTED, Problems, suggestion

# `refine` of a method without any layer: TOML has no null, which a grid of layers would need.
NO_LAYER = "none"


class Draft(NamedTuple):
    """A run whose tables are not checked yet."""

    name: str
    arm: str
    dataset: str
    tables: dict[str, Table]


def expand(
    document: Mapping[str, Any], problems: Problems
) -> tuple[list[Draft], dict[str, str | None]]:
    """Methods times grid: the runs, and each method with the one it is compared with."""
    grid = {
        key: values
        for key, values in document.get("grid", {}).items()
        if key.split(".")[1] in KEYS[key.split(".")[0]]
    }
    datasets = grid.pop("data.dataset", None)
    rows = _rows(document.get("arms", []), grid)
    count = len(datasets or [0]) * sum(
        math.prod(map(len, grid.values())) if _varies(row) else 1 for row in rows
    )
    if count > MOST_CELLS:  # before they are made
        problems.add(f"[grid]: {count} runs, more than {MOST_CELLS}. Divide it into several files.")
        return [], {}
    pair: str | None = as_table(document.get("report")).get("pair")
    base = _base_tables(document)
    drafts: list[Draft] = []
    arms: dict[str, str | None] = {}
    slugs: Counter[str] = Counter()
    for row, choice in _rows_and_choices(rows, grid):
        tables = _tables_of(base, row, choice)
        name = _arm_name(row["name"], tables["model"], choice)
        if name in arms:
            problems.add(f"two methods have the name {name!r}.")
        else:
            slugs[_slug(name)] += 1
        arms[name] = _partner(row, base, choice, pair, grid)
        drafts += _drafts_of(name, _unique_slug(name, slugs), tables, datasets)
    _check_partners(arms, problems)
    if pair is not None and pair not in grid:
        near = suggestion(str(pair), grid) if grid else ""
        problems.add(f"[report] pair = {pair!r}: not a key of [grid].{near}")
    for name, number in Counter(draft.name for draft in drafts).items():
        if number > 1:
            problems.add(f"two runs have the name {name!r}.")
    return drafts, arms


def _varies(row: Mapping[str, Any]) -> bool:
    """Whether the grid applies to a method; not with `grid = false`."""
    return row.get("grid") is not False


def _rows(arms: Sequence[Any], grid: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The methods of the file, and the unnamed one of the grid if no method varies with it."""
    if arms and (not grid or any(map(_varies, arms))):
        return list(arms)
    return [{"name": None}, *arms]


def _rows_and_choices(
    rows: Sequence[Any], grid: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    for row in rows:
        yield from ((row, choice) for choice in (_choices(grid) if _varies(row) else [{}]))


def _base_tables(document: Mapping[str, Any]) -> dict[str, Table]:
    """The tables that all runs share: defaults, and what the document sets."""
    base = copy.deepcopy(DEFAULTS)
    _merge(base, document)
    if "localisation" in document:
        given = {k: v for k, v in document["localisation"].items() if k in LOCALISATION}
        base["localisation"] = copy.deepcopy(LOCALISATION | given)
    return base


def _tables_of(
    base: dict[str, Table], row: Mapping[str, Any], choice: Mapping[str, Any]
) -> dict[str, Table]:
    """The tables of one method with one choice of the grid."""
    tables = copy.deepcopy(base)
    _merge(tables, row)
    for key, value in choice.items():
        set_value(tables, key, value)
    if tables["model"]["refine"] == NO_LAYER:
        tables["model"] |= {"refine": None, "sparse_coding": False}
    return tables


def _partner(
    row: Mapping[str, Any],
    base: dict[str, Table],
    choice: Mapping[str, Any],
    pair: str | None,
    grid: Mapping[str, Sequence[Any]],
) -> str | None:
    """The method it is compared with: `against`, or the one with the first value of `pair`."""
    if pair is None or pair not in choice or choice[pair] == grid[pair][0]:
        return row.get("against")
    other = {**choice, pair: grid[pair][0]}
    return _arm_name(row["name"], _tables_of(base, row, other)["model"], other)


def _drafts_of(
    arm: str, slug: str, tables: dict[str, Table], datasets: Sequence[Any] | None
) -> Iterator[Draft]:
    for dataset in datasets or [tables["data"]["dataset"]]:
        own = copy.deepcopy(tables)
        own["data"]["dataset"] = dataset
        given = None if datasets else own["data"].get("name")
        short = str(given) if given else _short_name(str(dataset)) if dataset else "nothing"
        yield Draft(f"{_slug(short)}--{slug}", arm, short, own)


def _short_name(dataset: str) -> str:
    """The name of a data set with its options, or of a file without its suffix."""
    _, colon, options = dataset.partition(":")
    return dataset if colon and "=" in options else Path(dataset).stem


def _check_partners(arms: Mapping[str, str | None], problems: Problems) -> None:
    """Report each missing method once: in a large grid thousands may name it."""
    missing: dict[str, str] = {}
    for name, against in arms.items():
        if against is not None and (not isinstance(against, str) or against not in arms):
            missing.setdefault(str(against), name)
    for against, name in list(missing.items())[:MOST_LISTED]:
        near = suggestion(against, arms)
        problems.add(f"[[arms]] {name}: against = {against!r}: there is no such method.{near}")


def _choices(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _arm_name(given: str | None, model: Table, choice: Mapping[str, Any]) -> str:
    """The given name, or that of the model; then what else varies."""
    parts = [given] if given else [_value_text(model["aggregator"])]
    for key, value in choice.items():
        if key == "model.aggregator" and not given:
            continue
        if key == "model.sparse_coding" and not isinstance(value, Mapping):
            parts.append("+ SC" if value else "")
        elif key == "model.refine" and isinstance(value, str):
            parts.append({"sparse-coding": "+ SC", NO_LAYER: ""}.get(value, f"+ {value}"))
        else:
            parts.append(f"{key.partition('.')[2]}={_value_text(value)}")
    if given is None and "model.sparse_coding" not in choice and "model.refine" not in choice:
        refine = model["refine"] or ("SC" if model["sparse_coding"] else None)
        parts.append(f"+ {refine}" if refine else "")
    return " ".join(part for part in parts if part)


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(
            _value_text(v) if k == "name" else f"{k}={_value_text(v)}" for k, v in value.items()
        )
    return "-".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _unique_slug(name: str, slugs: Mapping[str, int]) -> str:
    """The slug with a number if it is not the first: mi-Net and MI-Net would share a folder."""
    slug = _slug(name)
    return f"{slug}-{slugs[slug]}" if slugs[slug] > 1 else slug


def _merge(tables: dict[str, Table], changes: Mapping[str, Any]) -> None:
    for section in (section for section in DEFAULTS if section in changes):
        tables[section] |= {
            key: copy.deepcopy(value)
            for key, value in changes[section].items()
            if key in KEYS[section]
        }


def get_value(table: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return None
        table = table[part]
    return table


def set_value(table: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key; tables on the way are made."""
    *path, last = key.split(".")
    for part in path:
        if not isinstance(table.get(part), dict):
            table[part] = {}
        table = table[part]
    table[last] = copy.deepcopy(value)
