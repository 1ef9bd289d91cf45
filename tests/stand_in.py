"""A small cohort with the official names and the layout of real ones: drawn features in which a
signal is planted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import torch

from scmil.bags.bag import Bag
from scmil.bags.datasets.cohorts import Cohort, Listed
from scmil.bags.hdf5 import write_bag

DIMS = {"resnet18": 512, "swin": 768, "ctranspath": 768}
DIMS |= {f"{encoder}-two-scales": 2 * dim for encoder, dim in DIMS.items()}
SIGNAL = 2.0  # in standard deviations: what a trained model cannot miss


def write_stand_in(
    work: Path, slides: Sequence[Listed], keys: Iterable[str] = DIMS, instances: int = 6
) -> Path:
    """Write a working folder as `scmil encode` leaves it: `bags/<encoder>/<slide>.h5`; a third of a
    positive bag shows it.
    """
    generator = torch.Generator().manual_seed(0)
    for key in keys:
        for listed in slides:
            features = torch.randn(instances, DIMS[key], generator=generator)
            if listed.label:
                features[: instances // 3 + 1] += SIGNAL
            about = {"encoder": key.removesuffix("-two-scales"), "size_px": 256, "mpp": 0.5}
            xy = 512 * torch.stack(
                [torch.arange(instances), torch.zeros(instances, dtype=torch.long)], 1
            )
            write_bag(
                Bag(listed.slide, features, xy=xy, provenance=about),
                work / "bags" / key / f"{listed.slide}.h5",
            )
    return work


def some_slides(cohort: Cohort, of_each: int) -> list[Listed]:
    """As many patients of each official part and class, with all their slides; slides without a
    patient stand alone.
    """

    def kind(listed: Listed) -> tuple[str, int]:
        return listed.part or "", listed.label

    chosen: set[Listed] = set()
    for _, alike in groupby(sorted(cohort.listed, key=kind), kind):
        people = [
            list(own) for _, own in groupby(alike, lambda listed: listed.patient or listed.slide)
        ]
        # Patients with several slides are where splits leak.
        several = [own for own in people if 1 < len(own) < 4][:1]
        alone = [own for own in people if len(own) == 1]
        chosen.update(listed for own in [*several, *alone][:of_each] for listed in own)
    return [listed for listed in cohort.listed if listed in chosen]
