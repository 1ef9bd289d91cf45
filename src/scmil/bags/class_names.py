"""Class names of a label table: order, spelling and comparison."""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scmil.errors import DataError


def comparable_label(word: str) -> float | str:
    """Return a label for comparison: 1 and 1.0 are one class, and so are Tumour and TUMOUR.

    >>> comparable_label("1.0"), comparable_label("Invasive  CARCINOMA")
    (1.0, 'invasive carcinoma')
    >>> comparable_label("Tumo\u0308r") == comparable_label("TUM\u00d6R")
    True
    """
    text = unicodedata.normalize("NFC", " ".join(word.split()).casefold())
    try:
        value = float(word)
    except ValueError:
        return text
    return value if value == value else text


def spellings_of(
    names: Sequence[str | None], spelled: Mapping[str, str], name: str
) -> tuple[str, ...]:
    """Return the different spellings of a class; numbers are compared by value."""
    return tuple(
        sorted(
            {
                word
                for word in names
                if word and spelled[word] == name and isinstance(comparable_label(word), str)
            }
        )
    )


def order_classes(
    path: str | Path, names: Sequence[str | None], given: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the classes in their order, and the class of each name in the table."""
    counts = Counter(name for name in names if name is not None)
    comparable = {name: comparable_label(name) for name in counts}
    values: set[Any] = set(comparable.values())
    if given is not None:
        order: dict[Any, str] = {comparable_label(name): name for name in given}
        for name, value in comparable.items():
            if name not in given and value not in order:
                near = difflib.get_close_matches(name, given, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise DataError(
                    f"{path}: label {name!r} is not among the classes {', '.join(given)}.{hint}"
                )
        return tuple(given), {
            name: name if name in given else order[value] for name, value in comparable.items()
        }
    if len(values) < 2:
        only = f"every label is {next(iter(counts))!r}" if counts else "no slide has a label"
        raise DataError(
            f"{path}: {only}, but at least two classes are needed. If the table is a part of a "
            "cohort, list all classes: classes=."
        )
    if all(isinstance(value, float) for value in values):
        return tuple(f"{value:.15g}" for value in sorted(values)), {
            name: f"{value:.15g}" for name, value in comparable.items()
        }
    usual: dict[Any, str] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        usual.setdefault(comparable[name], name)  # the most frequent spelling
    return tuple(sorted(usual.values())), {name: usual[value] for name, value in comparable.items()}
