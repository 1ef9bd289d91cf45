"""A part of a long list, for one of many computers: the third of sixteen is `3/16`.

Every computer lists all, and does its own. Nothing is dealt out by hand, so that a shard may be started twice, or again after
the others: what is done is kept, and what another process is at is not begun.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from scmil.errors import OptionError

Item = TypeVar("Item")


class Shard(NamedTuple):
    """One part of `total`, counted from 1.

    >>> [Shard(number, 3).of("abcdefgh") for number in (1, 2, 3)]
    [['a', 'd', 'g'], ['b', 'e', 'h'], ['c', 'f']]
    """

    number: int = 1
    total: int = 1

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Every `total`-th item: neighbours in a list are often alike in size, and so every part has some of each."""
        return list(items[self.number - 1 :: self.total])

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


ALL = Shard()


def parse_shard(text: str | None) -> Shard:
    """The shard that a user names, as `3/16`; nothing is all.

    >>> parse_shard("3/16"), parse_shard(None)
    (Shard(number=3, total=16), Shard(number=1, total=1))
    >>> parse_shard("0/4")
    Traceback (most recent call last):
    ...
    scmil.errors.OptionError: --shard 0/4: shards are counted from 1, and the last of 4 is 4/4. With SLURM: sbatch --array=1-4
    """
    if text is None:
        return ALL
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text)
    if not match:
        raise OptionError(f"--shard {text}: two whole numbers are needed, such as 3/16 for the third of sixteen parts.")
    number, total = map(int, match.groups())
    if not total:
        raise OptionError(f"--shard {text}: there are no parts. 1/1 is everything.")
    if not 1 <= number <= total:
        raise OptionError(
            f"--shard {text}: shards are counted from 1, and the last of {total} is {total}/{total}. "
            f"With SLURM: sbatch --array=1-{total}"
        )
    return Shard(number, total)
