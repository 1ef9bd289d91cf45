"""SC-MIL: sparse coding in front of any multiple instance learning aggregator.

Eq. (4) of the paper is `scmil.sparse_coding.unrolled_ista`. Names are loaded when they are first
used, so that `import scmil` is quick.

>>> import torch, scmil
>>> model = scmil.build_model(dim=512, classes=2, sparse_coding=True, seed=0)
>>> prediction = model(torch.randn(1000, 512))
>>> prediction.logits.shape, prediction.attention.shape
(torch.Size([2]), torch.Size([1000]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scmil.core.aliases import install

__version__ = "0.6.0"

# The module of each public name. A test checks that this list and docs/public_api.md agree.
_HOME = {
    "SparseCoding": "sparse_coding.layer",
    "soft_threshold": "sparse_coding.equations",
    "unrolled_ista": "sparse_coding.equations",
    "ReleasedSparseCoding": "sparse_coding.released",
    "Prediction": "models.aggregators",
    "Embedding": "models.aggregators",
    "MILModel": "models.model",
    "build_model": "models.model",
    "plug_into": "models.external",
    "save_model": "models.files",
    "load_model": "models.files",
    "count_parameters": "models.cost",
    "count_multiply_adds": "models.cost",
    "open_slide": "slides",
    "find_tissue": "slides",
    "tile": "slides",
    "load_encoder": "encoding.encoders",
    "encode": "encoding.features",
    "open_bags": "bags.formats",
    "read_labels": "bags.labels",
    "write_bag": "bags.hdf5",
    "read_bag": "bags.hdf5",
    "Bag": "bags.bag",
    "BagSet": "bags.bag",
    "load_dataset": "bags.datasets",
    "read_bags": "bags.datasets.table",
    "Recipe": "training.recipes",
    "recipe": "training.recipes",
    "fit": "training.fitting",
    "fit_folds": "training.folds",
    "predict": "training.fitting",
    "SCMILClassifier": "training.estimator",
    "SCMILRegressor": "training.target_estimators",
    "SCMILSurvival": "training.target_estimators",
    "Targets": "bags.targets",
    "read_targets": "bags.target_tables",
    "ScmilError": "errors",
}
_PUBLIC_MODULES = {
    "aggregators": "models.aggregators",
    "audit": "bags.audit",
    "bags": "bags",
    "cohort": "encoding.cohort",
    "cost": "models.cost",
    "datasets": "bags.datasets",
    "encoders": "encoding.encoders",
    "errors": "errors",
    "experiment": "studies.runner",
    "features": "encoding.features",
    "formats": "bags.formats",
    "labels": "bags.labels",
    "metrics": "stats.metrics",
    "model": "models.model",
    "plan": "studies.plan",
    "recipes": "training.recipes",
    "report": "report",
    "significance": "stats.significance",
    "slides": "slides",
    "sparse_coding": "sparse_coding",
    "splits": "bags.splits",
    "training": "training",
}

install(
    "scmil", _PUBLIC_MODULES
)  # so that `import scmil.aggregators` finds `scmil.models.aggregators`

__all__ = [*_HOME, *_PUBLIC_MODULES, "__version__"]  # noqa: PLE0604  (all of them are strings)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"scmil.{_HOME[name]}"), name)
    if name in _PUBLIC_MODULES:
        return import_module(f"scmil.{_PUBLIC_MODULES[name]}")
    raise AttributeError(f"module 'scmil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from scmil.bags.bag import Bag as Bag
    from scmil.bags.bag import BagSet as BagSet
    from scmil.bags.datasets import load_dataset as load_dataset
    from scmil.bags.datasets.table import read_bags as read_bags
    from scmil.bags.formats import open_bags as open_bags
    from scmil.bags.hdf5 import read_bag as read_bag
    from scmil.bags.hdf5 import write_bag as write_bag
    from scmil.bags.labels import read_labels as read_labels
    from scmil.bags.target_tables import read_targets as read_targets
    from scmil.bags.targets import Targets as Targets
    from scmil.encoding.encoders import load_encoder as load_encoder
    from scmil.encoding.features import encode as encode
    from scmil.errors import ScmilError as ScmilError
    from scmil.models.aggregators import Embedding as Embedding
    from scmil.models.aggregators import Prediction as Prediction
    from scmil.models.cost import count_multiply_adds as count_multiply_adds
    from scmil.models.cost import count_parameters as count_parameters
    from scmil.models.external import plug_into as plug_into
    from scmil.models.files import load_model as load_model
    from scmil.models.files import save_model as save_model
    from scmil.models.model import MILModel as MILModel
    from scmil.models.model import build_model as build_model
    from scmil.slides import find_tissue as find_tissue
    from scmil.slides import open_slide as open_slide
    from scmil.slides import tile as tile
    from scmil.sparse_coding.equations import soft_threshold as soft_threshold
    from scmil.sparse_coding.equations import unrolled_ista as unrolled_ista
    from scmil.sparse_coding.layer import SparseCoding as SparseCoding
    from scmil.sparse_coding.released import ReleasedSparseCoding as ReleasedSparseCoding
    from scmil.training.estimator import SCMILClassifier as SCMILClassifier
    from scmil.training.fitting import fit as fit
    from scmil.training.fitting import predict as predict
    from scmil.training.folds import fit_folds as fit_folds
    from scmil.training.recipes import Recipe as Recipe
    from scmil.training.recipes import recipe as recipe
    from scmil.training.target_estimators import SCMILRegressor as SCMILRegressor
    from scmil.training.target_estimators import SCMILSurvival as SCMILSurvival
