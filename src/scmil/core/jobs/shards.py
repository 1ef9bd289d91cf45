"""Shards: the items of a long list that one of several computers processes, such as `3/16`.

Every computer lists all items and processes those of its shard. Shards may be started twice or in
any order: finished items are kept, and items that another process has locked are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from scmil.errors import OptionError

Item = TypeVar("Item")


class Shard(NamedTuple):
    """One of `total` shards, counted from 1.

    >>> [Shard(number, 3).of("abcdefgh") for number in (1, 2, 3)]
    [['a', 'd', 'g'], ['b', 'e', 'h'], ['c', 'f']]
    """

    number: int = 1
    total: int = 1

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Every `total`-th item, because neighbours in a list often have a similar size."""
        return list(items[self.number - 1 :: self.total])

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


ALL = Shard()


def parse_shard(text: str | None) -> Shard:
    """Parse a shard such as `3/16`; None is the whole list.

    >>> parse_shard("3/16"), parse_shard(None)
    (Shard(number=3, total=16), Shard(number=1, total=1))
    >>> parse_shard("0/4")
    Traceback (most recent call last):
    ...
    scmil.errors.OptionError: --shard 0/4: shards are counted from 1, and the last of 4 is 4/4.
    With SLURM: sbatch --array=1-4
    """
    if text is None:
        return ALL
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text)
    if not match:
        raise OptionError(
            f"--shard {text}: expected two whole numbers, such as 3/16 for the third of sixteen "
            "shards."
        )
    number, total = map(int, match.groups())
    if not total:
        raise OptionError(f"--shard {text}: there are no shards. Use 1/1 for the whole list.")
    if not 1 <= number <= total:
        raise OptionError(
            f"--shard {text}: shards are counted from 1, and the last of {total} is "
            f"{total}/{total}. With SLURM: sbatch --array=1-{total}"
        )
    return Shard(number, total)
