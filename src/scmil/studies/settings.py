"""Settings of one run as typed, frozen objects: the tables of an experiment config.

`to_json` gives the same tables that `experiment.json` and `result.json` hold; optional keys that
were not given are left out, so that the digest of a run depends only on the given ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from scmil.core.fingerprint import sha256_of_json
from scmil.training import baseline

Json = dict[str, Any]


@dataclass(frozen=True)
class TaskOptions:
    """What is predicted, as a user states it; None where the label table leaves no doubt.

    Attributes:
        task: One of `scmil.bags.targets.TASKS`.
        time: Column of the times to an event.
        event: Column of the events.
        event_value: The word that means an event.
        grades: Names of the grades from the lowest, separated by commas.
    """

    task: str | None = None
    time: str | None = None
    event: str | None = None
    event_value: str | None = None
    grades: str | None = None


@dataclass(frozen=True)
class DataSettings:
    """`[data]`: which bags, what is predicted, and whether their features are standardised.

    `patient` is one of `PATIENT_MODES`, "mean" if it is None. `task` is None for classes; for
    several labels `label` has their columns, separated by commas.

    >>> DataSettings("bags", False, labels="labels.csv").to_json()
    {'dataset': 'bags', 'standardise': False, 'labels': 'labels.csv'}
    """

    dataset: str
    standardise: bool
    name: str | None = None
    labels: str | None = None
    label: str | None = None
    key: str | None = None
    format: str | None = None
    missing: str | None = None
    allow_missing: bool | None = None
    drop_unlabelled: bool | None = None
    task: str | None = None
    time: str | None = None
    event: str | None = None
    event_value: str | None = None
    grades: str | None = None
    patient: str | None = None
    site: str | None = None  # column whose slides stay together in test splits

    def to_json(self) -> Json:
        """The table, without options that were not given."""
        return _without_none(asdict(self))

    @property
    def pooling(self) -> str:
        """How predictions of the slides of a patient are combined: "mean" or "max"."""
        return "max" if self.patient == "max" else "mean"

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> DataSettings:
        """The settings that a table holds."""
        return cls(**table)


@dataclass(frozen=True)
class ProtocolSettings:
    """`[protocol]`: how bags are split, and by which selection protocols runs are scored."""

    kind: str
    folds: int
    repeats: int
    seed: int
    selection: tuple[str, ...]
    valid: float
    test: float
    splits: str | None = None

    def to_json(self) -> Json:
        """The table."""
        return asdict(self) | {"selection": list(self.selection)}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> ProtocolSettings:
        """The settings that a table holds."""
        return cls(**{**table, "selection": tuple(table["selection"])})


@dataclass(frozen=True)
class ModelSettings:
    """`[model]`: an aggregator, by name or with options, and the layers in front of it."""

    aggregator: str | Mapping[str, Any] = "abmil-gated"
    sparse_coding: bool | Mapping[str, Any] = False
    refine: str | None = None
    embed: Any = None

    def to_json(self) -> Json:
        """The table."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> ModelSettings:
        """The settings that a table holds."""
        return cls(**table)

    @property
    def is_network(self) -> bool:
        """Whether it is trained by gradient descent; the baseline is not."""
        return aggregator_of(self) != baseline.NAME

    @property
    def has_sparse_coding(self) -> bool:
        """Whether sparse coding refines the instances, and not a layer in its place."""
        return bool(self.refine == "sparse-coding" if self.refine else self.sparse_coding)

    @property
    def has_layer(self) -> bool:
        """Whether sparse coding or another layer refines the instances."""
        return bool(self.refine or self.sparse_coding)


@dataclass(frozen=True)
class TrainingSettings:
    """`[training]`: a recipe by name, changes of its values, and options that are not of a recipe:
    class weights, device, precision, and the loss of another task than classes.
    """

    recipe: str = "paper"
    changes: Mapping[str, Any] = field(default_factory=dict)
    class_weights: str | list[float] | None = None
    device: str | None = None
    precision: str | None = None
    loss: str | None = None
    keep_models: bool | None = None

    def to_json(self) -> Json:
        """The table, without options that were not given."""
        further = {key: getattr(self, key) for key in TRAINING_KEYS}
        return {"recipe": self.recipe, **self.changes, **_without_none(further)}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> TrainingSettings:
        """The settings that a table holds."""
        own = {key: table[key] for key in TRAINING_KEYS if key in table}
        changes = {
            key: value for key, value in table.items() if key not in ("recipe", *TRAINING_KEYS)
        }
        return cls(table["recipe"], changes, **own)


# Keys of `[training]` that are not values of a recipe.
TRAINING_KEYS = ("class_weights", "device", "precision", "loss", "keep_models")


@dataclass(frozen=True)
class LocalisationSettings:
    """`[localisation]`: where the annotations of the test slides are, and how lesions are found."""

    annotations: str | None = None
    class_name: str | None = None
    score: str = "probability"
    rule: str = "peaks"
    radius_um: float | None = None
    smooth_um: float = 0.0
    least: float | None = None
    mpp: float | None = None
    exclude: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """The table."""
        table = asdict(self)
        return {
            "annotations": table.pop("annotations"),
            "class": table.pop("class_name"),
            **table,
            "exclude": list(self.exclude),
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> LocalisationSettings:
        """The settings that a table holds."""
        own = dict(table)
        return cls(class_name=own.pop("class"), exclude=tuple(own.pop("exclude")), **own)


@dataclass(frozen=True)
class RunSettings:
    """All settings of one run."""

    data: DataSettings
    protocol: ProtocolSettings
    model: ModelSettings
    training: TrainingSettings
    localisation: LocalisationSettings | None = None

    def to_json(self) -> Json:
        """The tables by name, as `result.json` holds them."""
        tables = {
            "data": self.data.to_json(),
            "protocol": self.protocol.to_json(),
            "model": self.model.to_json(),
            "training": self.training.to_json(),
        }
        own = self.localisation
        return tables if own is None else tables | {"localisation": own.to_json()}

    @classmethod
    def from_json(cls, tables: Mapping[str, Any]) -> RunSettings:
        """The settings that the tables hold; they have been checked, see `scmil.studies.config`."""
        return cls(
            DataSettings.from_json(tables["data"]),
            ProtocolSettings.from_json(tables["protocol"]),
            ModelSettings.from_json(tables["model"]),
            TrainingSettings.from_json(tables["training"]),
            LocalisationSettings.from_json(tables["localisation"])
            if "localisation" in tables
            else None,
        )

    @cached_property
    def digest(self) -> str:
        """Changes with any setting: a result belongs to a run only if it has the same digest.

        Until version 0.6 weight decay applied to sparse coding. A run without it has an entry of
        its own, so that results of that time are taken only for a run with `decay_sparse_coding`.
        """
        tables = self.to_json()
        decayed = tables["training"].pop("decay_sparse_coding", False)
        if self.model.has_sparse_coding and not decayed:
            tables["training"]["decay_sparse_coding"] = False
        return sha256_of_json(tables)[:16]


@dataclass(frozen=True)
class TrainSettings:
    """Settings of `train`: the model, its training, and how the bags are split.

    Args:
        aggregator: The name of an aggregator.
        sparse_coding: Whether sparse coding precedes it, or a mapping with its options.
        recipe: The name of a recipe; "official" is that of the aggregator's authors.
        epochs: Epochs, instead of the recipe's.
        patience: Epochs without improvement after which training stops; None: never.
        folds: Folds of a cross-validation; None: the model is tested on a test split instead.
        repeats: Repetitions of the cross-validation, each with new random folds.
        keep_folds: Whether the models of the cross-validation are kept as an ensemble.
        valid: Fraction of patients in the validation split.
        test: Fraction of patients in the test split.
        class_weights: "balanced", or a weight for each class.
        device: Where it is trained.
        precision: Precision of matrix products.
        seed: Seed of the split, the initial weights and the order of bags.
        loss: Loss of another task than classes, instead of its first one.
        calibrate: Whether a temperature is fitted on the validation split.
    """

    aggregator: str = "abmil-gated"
    sparse_coding: bool | Mapping[str, Any] = False
    recipe: str = "official"
    epochs: int | None = None
    patience: int | None = 20  # the official recipes for slides have 40 to 200 epochs
    folds: int | None = None
    repeats: int = 1
    keep_folds: bool = False
    valid: float = 0.2
    test: float = 0.2
    class_weights: str | Sequence[float] | None = None
    device: str = "cpu"
    precision: str = "float32"
    seed: int = 0
    loss: str | None = None
    calibrate: bool = False

    @property
    def model(self) -> ModelSettings:
        """The model to train."""
        return ModelSettings(self.aggregator, self.sparse_coding)

    @property
    def training(self) -> TrainingSettings:
        """How it is trained."""
        changes = {"patience": self.patience, "epochs": self.epochs}
        return TrainingSettings(self.recipe, _without_none(changes))

    @property
    def weights(self) -> str | list[float] | None:
        """The class weights as JSON has them."""
        given = self.class_weights
        return given if given is None or isinstance(given, str) else list(given)

    def to_json(self) -> Json:
        """The tables by name, as `study.json` holds them."""
        return {
            "model": self.model.to_json(),
            "training": self.training.to_json(),
            "split": {
                "valid": self.valid,
                "test": None if self.folds else self.test,
                "folds": self.folds,
                "repeats": self.repeats if self.folds else None,
                **({"keep_folds": True} if self.keep_folds else {}),  # models of 0.6 have none
            },
            "class_weights": self.weights,
            "device": self.device,
            "precision": self.precision,
            "seed": self.seed,
            **_without_none({"loss": self.loss}),
            **({"calibrate": True} if self.calibrate else {}),
        }


def _without_none(table: Json) -> Json:
    return {key: value for key, value in table.items() if value is not None}


def aggregator_of(model: ModelSettings) -> str:
    """The name of the aggregator, given with or without options.

    >>> aggregator_of(ModelSettings({"name": "abmil", "hidden": 64}))
    'abmil'
    """
    own = model.aggregator
    return str(own.get("name") if isinstance(own, Mapping) else own)
