"""Sample the tiles of the figure, and determine their colours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.core.jobs.failure_log import record_failure
from scmil.errors import DataError
from scmil.models.tile_scores import tile_spacing

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet

MOST_RATIO = 4  # maximum ratio of tiles to those of the rarest colour


class Sample(NamedTuple):
    """The sampled tiles: slide, row within the bag, position, and colour."""

    slides: list[str]
    rows: NDArray[np.int64]
    xy: NDArray[np.int64]
    colour: NDArray[np.int64]


def choose_tiles(
    bags: BagSet,
    annotations: str | Path | None,
    tiles: int,
    seed: int,
    failed: dict[str, str],
    left_out: list[str],
    progress: Callable[[str, int, int], None] | None,
) -> Sample:
    """Read every bag, colour its tiles, and return a balanced sample of them."""
    found: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
    for position, slide_id in enumerate(bags.ids):
        with record_failure(slide_id, failed):
            bag = bags[position]
            colour = (
                _colour_by_label(bag)
                if annotations is None
                else _colour_by_annotation(bag, Path(annotations))
            )
            if colour is None:
                left_out.append(slide_id)
            else:
                xy = (
                    np.zeros((len(colour), 2), np.int64)
                    if bag.xy is None
                    else bag.xy.numpy().astype(np.int64)
                )
                found.append((position, colour, xy))
        if progress:
            progress("reading bags", position + 1, len(bags))
    if not found:
        why = next(
            iter(failed.values()),
            "No slide has a label or an annotation. Give --labels or --annotations.",
        )
        raise DataError(f"there are no tiles to draw. {why}")
    where = np.concatenate([np.full(len(colour), position) for position, colour, _ in found])
    rows = np.concatenate([np.arange(len(colour)) for _, colour, _ in found])
    colour = np.concatenate([colour for _, colour, _ in found])
    xy = np.concatenate([xy for *_, xy in found])
    chosen = balanced(where, colour, tiles, seed)
    return Sample([bags.ids[where[i]] for i in chosen], rows[chosen], xy[chosen], colour[chosen])


def balanced(
    groups: NDArray[np.int64], colour: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """Sample `count` tiles, the same number of each colour, spread over the groups; sorted.

    A rare colour may have fewer tiles; the others then have at most four times as many, so that the
    rare colour remains visible.

    >>> colour = np.array([0] * 90 + [1] * 10)
    >>> chosen = balanced(np.arange(100) % 5, colour, 16, seed=0)
    >>> np.bincount(colour[chosen]).tolist(), np.bincount(chosen % 5).max().item()
    ([8, 8], 4)
    >>> np.bincount(colour[balanced(np.arange(100) % 5, colour, 200, seed=0)]).tolist()
    [40, 10]
    """
    generator = np.random.default_rng(seed)
    present = np.unique(colour)
    smallest = min(int((colour == k).sum()) for k in present)
    share = min(max(count // len(present), 1), MOST_RATIO * smallest)
    chosen = []
    for k in present:
        own = generator.permutation(np.flatnonzero(colour == k))
        # The number of each tile within its group: the first tiles of all groups come first.
        turn = np.empty(len(own), np.int64)
        for group in np.unique(groups[own]):
            members = groups[own] == group
            turn[members] = np.arange(members.sum())
        chosen.append(own[np.argsort(turn, kind="stable")[:share]])
    return np.sort(np.concatenate(chosen))


def _colour_by_label(bag: Bag) -> NDArray[np.int64] | None:
    """The label of the slide for every tile; None without a label."""
    return None if bag.label is None else np.full(len(bag.features), bag.label, np.int64)


def _colour_by_annotation(bag: Bag, folder: Path) -> NDArray[np.int64] | None:
    """1 for tiles whose centre is in an annotated lesion, else 0; None if this is not known."""
    from scmil.slides.annotations.lookup import find_annotation, read_lesions

    path = find_annotation(bag.id, folder)
    if path is None:
        return np.zeros(len(bag.features), np.int64) if bag.label == 0 else None
    if bag.xy is None:
        raise DataError(
            f"bag {bag.id!r} has no tile coordinates, which are compared with the annotation. "
            "Encode the slide with scmil encode."
        )
    side = bag.provenance.get("side_level0") or tile_spacing(bag.id, bag.xy.numpy())
    area = read_lesions(path)
    centres = bag.xy.numpy() + float(side) / 2
    inside = import_extra("shapely", "slides").contains_xy(area, centres[:, 0], centres[:, 1])
    return np.asarray(inside, dtype=np.int64)
