"""Nuclei of colorectal tissue, with a class for every instance.

The images are those of CRCHistoPhenotypes (Sirinukunwattana et al., 2016), which the University of
Warwick publishes for research: 100 H&E images with the classes of their nuclei. Sixty of them are
bags here: each annotated nucleus is an instance, a patch of 27 pixels around it, encoded by
EfficientNet-Lite0 with the weights of ImageNet. There is no public file of these features, so it
cannot be downloaded: `colon-nuclei.npz` has the arrays `X` (14831, 1280) in half precision, `bag`
(image of each row), `y` (0/1, whether the image has epithelial nuclei) and `inst_class` (class of
each nucleus, 0 = epithelial), in the order of the images.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from scmil.bags.bag import BagSet
from scmil.bags.datasets import registry, target_registry
from scmil.bags.datasets.classic import content_hash
from scmil.bags.datasets.positive_share import bag_targets, positive_shares
from scmil.bags.datasets.table import Table
from scmil.bags.datasets.table_files import arrays_to_table
from scmil.bags.targets import GradeTarget, NumberTarget, Targets
from scmil.core.download import cache
from scmil.core.regular_files import read_regular
from scmil.core.safe_io import npz_arrays
from scmil.errors import DataError

COLON = "colon-nuclei"
COLON_FILES = (f"{COLON}.npz", "colon_nuclei_60_efflite0_1280.npz")
COLON_SHA256 = "3d921e3e4d801b89805e47ff99bd79567573c3ac3cf5751740ea385c7fb2d628"
EPITHELIAL = 0
SHARES = ("none", "up to a half", "more than a half")


def find_colon(data: str | Path | None = None) -> Path | None:
    """Return the file of the nuclei in the user's folder or the cache, or None."""
    folders = [Path(folder) for folder in (data or os.environ.get("SCMIL_DATA"), cache()) if folder]
    candidates = [folder / file for folder in folders for file in COLON_FILES]
    return next((path for path in candidates if path.is_file()), None)


def colon_remedy() -> str:
    """Return how a user can get the nuclei."""
    return (
        f"Encode the nuclei of CRCHistoPhenotypes as the docstring of {__name__} describes, and "
        f"give the folder of {COLON_FILES[0]} with --data or SCMIL_DATA."
    )


def read_nuclei(content: bytes) -> Table:
    """Read the arrays of `colon-nuclei.npz`; epithelial nuclei are the positive instances."""
    try:
        arrays = npz_arrays(content)
        kinds = np.asarray(arrays["inst_class"])
    except Exception as error:  # numpy raises many kinds for a damaged file
        raise DataError(f"expected X, bag, y and inst_class, plain arrays ({error}).") from None
    instance_labels = (kinds == EPITHELIAL).astype(np.int64)
    known: dict[str, Any] = {name: arrays[name] for name in ("X", "bag", "y") if name in arrays}
    return arrays_to_table(known | {"instance_labels": instance_labels})


@registry.register(COLON, "60 images of colorectal tissue, does it have epithelial nuclei?")
def colon_nuclei(data: str | Path | None = None) -> BagSet:
    """Return 60 images as bags of 14 831 nuclei, with a label for every instance."""
    path = find_colon(data)
    if path is None:
        raise DataError(f"{COLON} is not on this computer. {colon_remedy()}")
    try:
        bags = read_nuclei(read_regular(path)).bags()
    except (OSError, DataError) as error:
        raise DataError(f"{path}: cannot be read as {COLON}: {error}") from None
    if (actual := nuclei_hash(bags)) != COLON_SHA256:
        raise DataError(
            f"{path}: these are not the bags of {COLON} (sha256 of the content {actual[:12]}…, "
            f"expected {COLON_SHA256[:12]}…). {colon_remedy()}"
        )
    return bags


def nuclei_hash(bags: BagSet) -> str:
    """Return the SHA-256 of labels, features and instance labels."""
    sha = hashlib.sha256(content_hash(bags).encode())
    for bag in bags:
        if bag.instance_labels is not None:
            sha.update(bag.instance_labels.numpy().astype("<i8").tobytes())
    return sha.hexdigest()


@target_registry.register(f"{COLON}/regression", "share of epithelial nuclei among all nuclei")
def epithelial_share(bags: BagSet, seed: int = 0) -> Targets:
    """Return the share of the annotated nuclei of each image that are epithelial."""
    return bag_targets(bags, NumberTarget("epithelial share"), positive_shares(bags).tolist())


@target_registry.register(f"{COLON}/ordinal", "share of epithelial nuclei in three grades")
def epithelial_grade(bags: BagSet, seed: int = 0) -> Targets:
    """Return a grade of each image: no epithelial nuclei, up to a half of them, or more."""
    grades = [int(share > 0) + int(share > 0.5) for share in positive_shares(bags).tolist()]
    return bag_targets(bags, GradeTarget("epithelial grade", SHARES), grades)
