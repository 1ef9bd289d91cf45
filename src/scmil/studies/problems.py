"""Problems of an experiment file, collected so that all of them are reported at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from scmil.errors import ConfigError

# Names listed in a message, and names or letters that an unknown one is compared with.
MOST_LISTED, MOST_COMPARED = 40, 400


class Kind(Enum):
    """What a problem prevents: with unknown keys alone, the other values can still be checked."""

    UNKNOWN_KEY = auto()
    INVALID = auto()


class Problem(NamedTuple):
    """One problem: its kind, and the sentence that the user reads."""

    kind: Kind
    text: str


class Problems:
    """The problems found so far, in order.

    >>> problems = Problems()
    >>> problems.add_unknown_key("[model]", "agregator", ["aggregator", "refine"])
    >>> problems.prevent_expansion
    False
    >>> problems.raise_if_any("mine.toml")
    Traceback (most recent call last):
    ...
    scmil.errors.ConfigError: mine.toml has 1 problem
      [model] agregator: unknown key. Did you mean 'aggregator'?
    """

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def add(self, text: str) -> None:
        """Record an invalid value."""
        self._problems.append(Problem(Kind.INVALID, text))

    def add_unknown_key(self, label: str, key: str, known: Iterable[str]) -> None:
        """Record a key that does not exist, with the nearest one that does."""
        text = f"{label} {key}: unknown key.{suggestion(key, known)}".strip()
        self._problems.append(Problem(Kind.UNKNOWN_KEY, text))

    @property
    def prevent_expansion(self) -> bool:
        """Whether the tables are too malformed for runs to be made of them."""
        return any(problem.kind is not Kind.UNKNOWN_KEY for problem in self._problems)

    def raise_if_any(self, source: str) -> None:
        """Raise one error that lists all problems, each of them once."""
        texts = list(dict.fromkeys(problem.text for problem in self._problems))
        if texts:
            count = "1 problem" if len(texts) == 1 else f"{len(texts)} problems"
            raise ConfigError(f"{source} has {count}\n  " + "\n  ".join(texts))


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or a list of them.

    >>> suggestion("fold", ["folds", "seed"]), suggestion("x", ["folds", "seed"])
    (" Did you mean 'folds'?", ' Known: folds, seed.')
    """
    names = list(known)[:MOST_COMPARED]
    near = difflib.get_close_matches(name[:MOST_COMPARED], names, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(names[:MOST_LISTED])}."
