"""Random numbers of training: they depend only on the seed, the epoch and the id of a bag."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch


def step_seed(seed: int, epoch: int, bag_id: str) -> int:
    """The seed of one step, independent of all steps before it."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{bag_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch seeds are signed


def seed_generators(seed: int) -> None:
    """Seed torch's global random generators, as `torch.manual_seed` does.

    For each kind of device that is not in use `torch.manual_seed` formats the call stack, which
    takes a quarter of a millisecond: longer than a step on a small bag.
    """
    if _has_other_devices():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_other_devices() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def epoch_order(ids: Sequence[str], seed: int, epoch: int) -> list[int]:
    """The order of the bags in an epoch; leaving out bags does not change the order of the others.

    >>> whole, part = epoch_order(["a", "b", "c", "d"], 0, 0), epoch_order(["a", "c", "d"], 0, 0)
    >>> ["abcd"[i] for i in whole if i != 1] == ["acd"[i] for i in part]
    True
    """
    return sorted(range(len(ids)), key=lambda position: step_seed(seed, epoch, ids[position]))


@contextmanager
def own_randomness() -> Iterator[None]:
    """Context manager: restore torch's global random generators at the end."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
