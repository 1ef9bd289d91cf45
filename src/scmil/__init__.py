"""SC-MIL: sparse coding in front of any multiple instance learning aggregator.

Eq. (4) of the paper is `scmil.sparse_coding.unrolled_ista`. Names are loaded when they are first used, so that
`import scmil` is quick.

>>> import torch, scmil
>>> model = scmil.build_model(dim=512, classes=2, aggregator="abmil-gated", sparse_coding=True, seed=0)
>>> prediction = model(torch.randn(1000, 512))
>>> prediction.logits.shape, prediction.attention.shape
(torch.Size([2]), torch.Size([1000]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.6.0"

# Where each public name lives. `tests/test_docs.py` holds that this list, the imports below and the docs agree.
_HOME = {
    "SparseCoding": "sparse_coding",
    "soft_threshold": "sparse_coding",
    "unrolled_ista": "sparse_coding",
    "ReleasedSparseCoding": "released",
    "Prediction": "aggregators",
    "Embedding": "aggregators",
    "MILModel": "model",
    "build_model": "model",
    "plug_into": "plug",
    "save_model": "model_files",
    "load_model": "model_files",
    "count_parameters": "cost",
    "count_multiply_adds": "cost",
    "open_slide": "slides",
    "find_tissue": "slides",
    "tile": "slides",
    "load_encoder": "encoders",
    "encode": "features",
    "open_bags": "formats",
    "read_labels": "labels",
    "write_bag": "bag_files",
    "read_bag": "bag_files",
    "Bag": "bags",
    "BagSet": "bags",
    "load_dataset": "datasets",
    "read_bags": "datasets.table",
    "Recipe": "recipes",
    "recipe": "recipes",
    "fit": "training",
    "fit_folds": "folds",
    "predict": "training",
    "SCMILClassifier": "estimator",
    "ScmilError": "errors",
}
_ROOMS = (
    "aggregators", "audit", "bags", "cohort", "cost", "datasets", "encoders", "errors", "experiment", "features", "formats",
    "labels", "metrics", "model", "plan", "recipes", "report", "significance", "slides", "sparse_coding", "splits",
    "training",
)  # fmt: skip

__all__ = [*_HOME, *_ROOMS, "__version__"]  # noqa: PLE0604  (all of them are strings)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"scmil.{_HOME[name]}"), name)
    if name in _ROOMS:
        return import_module(f"scmil.{name}")
    raise AttributeError(f"module 'scmil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from scmil.aggregators import Embedding as Embedding
    from scmil.aggregators import Prediction as Prediction
    from scmil.bag_files import read_bag as read_bag
    from scmil.bag_files import write_bag as write_bag
    from scmil.bags import Bag as Bag
    from scmil.bags import BagSet as BagSet
    from scmil.cost import count_multiply_adds as count_multiply_adds
    from scmil.cost import count_parameters as count_parameters
    from scmil.datasets import load_dataset as load_dataset
    from scmil.datasets.table import read_bags as read_bags
    from scmil.encoders import load_encoder as load_encoder
    from scmil.errors import ScmilError as ScmilError
    from scmil.estimator import SCMILClassifier as SCMILClassifier
    from scmil.features import encode as encode
    from scmil.folds import fit_folds as fit_folds
    from scmil.formats import open_bags as open_bags
    from scmil.labels import read_labels as read_labels
    from scmil.model import MILModel as MILModel
    from scmil.model import build_model as build_model
    from scmil.model_files import load_model as load_model
    from scmil.model_files import save_model as save_model
    from scmil.plug import plug_into as plug_into
    from scmil.recipes import Recipe as Recipe
    from scmil.recipes import recipe as recipe
    from scmil.released import ReleasedSparseCoding as ReleasedSparseCoding
    from scmil.slides import find_tissue as find_tissue
    from scmil.slides import open_slide as open_slide
    from scmil.slides import tile as tile
    from scmil.sparse_coding import SparseCoding as SparseCoding
    from scmil.sparse_coding import soft_threshold as soft_threshold
    from scmil.sparse_coding import unrolled_ista as unrolled_ista
    from scmil.training import fit as fit
    from scmil.training import predict as predict
