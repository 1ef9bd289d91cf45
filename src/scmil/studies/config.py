"""The experiment file: its tables and keys, their defaults, and checks of all keys and values.

The checks read plain tables, as TOML gives them. Tables without problems become `RunSettings`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from scmil.bags.patient_bags import PATIENT_MODES
from scmil.core.limits import BOUNDS, problem
from scmil.core.run_format import PROTOCOLS, TEST_TUNED
from scmil.errors import OptionError, ScmilError
from scmil.studies.from_settings import check_model, recipe_of, rule_of, without_partly_annotated
from scmil.studies.problems import Problems, suggestion
from scmil.studies.settings import (
    TRAINING_KEYS,
    LocalisationSettings,
    ModelSettings,
    TaskOptions,
    TrainingSettings,
)
from scmil.training import baseline

SPLIT_KINDS = ("kfold", "holdout", "official")

Table = dict[str, Any]  # a table of the file, not checked yet

# Every key with a default. `model` and `training` take what build_model and Recipe take.
DEFAULTS: dict[str, Table] = {
    "data": {"dataset": None, "standardise": None},
    "protocol": {
        "kind": "kfold",
        "folds": 10,
        "repeats": 1,
        "seed": 0,
        "selection": ["last"],
        "valid": 0.2,
        "test": 0.2,
        "splits": None,
    },
    "model": ModelSettings().to_json(),
    "training": TrainingSettings().to_json(),
}
RECIPE_KEYS = (
    "epochs",
    "learning_rate",
    "weight_decay",
    "betas",
    "optimiser",
    "schedule",
    "final_rate",
    "decay_weights_only",
    "decay_sparse_coding",
    "clip",
    "patience",
    "warm_up",
    "regularisation",
)
# Optional keys without a default: settings without them do not contain them.
TARGET_KEYS = tuple(each.name for each in fields(TaskOptions))
DATA_TEXTS = (
    *("name", "labels", "label", "key", "format", "missing", "patient", "site"),
    *TARGET_KEYS,
)
DATA_SWITCHES = ("allow_missing", "drop_unlabelled")
KEYS: dict[str, tuple[str, ...]] = {
    "data": (*DEFAULTS["data"], *DATA_TEXTS, *DATA_SWITCHES),
    "protocol": tuple(DEFAULTS["protocol"]),
    "model": tuple(DEFAULTS["model"]),
    "training": (*DEFAULTS["training"], *RECIPE_KEYS, *TRAINING_KEYS),
}
# A table of its own, which most experiments do not have.
LOCALISATION: Table = LocalisationSettings().to_json()
REPORT_KEYS = ("pair", "published", "published_note")
ARM_KEYS = ("name", "against", "grid", *DEFAULTS)
TOP_KEYS = ("title", "about", *DEFAULTS, "localisation", "grid", "arms", "report")
TABLES = (".csv", ".npz", ".svm", ".mat")  # files that hold a whole data set


def standardised_by_default(dataset: str) -> bool:
    """Whether features are standardised if the user does not choose: not those of a folder of bags.

    Features in a folder come from an encoder and have one scale; columns of a table have units of
    their own.

    >>> standardised_by_default("musk1"), standardised_by_default(".")
    (True, False)
    """
    return not Path(dataset).is_dir()


# --------------------------------------------------------------------------------- tables and keys


def check_tables(document: Mapping[str, Any], problems: Problems) -> None:
    """Find unknown keys and values of a wrong type in the whole document."""
    _check_keys("", document, TOP_KEYS, problems)
    for section in (*DEFAULTS, "localisation", "grid", "report"):
        if section in document and not isinstance(document[section], Mapping):
            problems.add(f"[{section}]: expected a table, not {document[section]!r}.")
    known = {**KEYS, "report": REPORT_KEYS, "localisation": tuple(LOCALISATION)}
    for section, keys in known.items():
        _check_keys(f"[{section}]", as_table(document.get(section)), keys, problems)
    for key, values in as_table(document.get("grid")).items():
        _check_grid_key(key, values, problems)
    _check_arms(document.get("arms", []), problems)


def _check_keys(
    label: str, table: Mapping[str, Any], known: Sequence[str], problems: Problems
) -> None:
    for key in table:
        if key not in known:
            problems.add_unknown_key(label, key, known)


def _check_grid_key(key: str, values: Any, problems: Problems) -> None:
    section, _, rest = key.partition(".")
    if section not in KEYS or not rest:
        sections = ", ".join(KEYS)
        problems.add(f'[grid] {key!r}: expected a key such as "data.dataset", of {sections}.')
    elif (name := rest.partition(".")[0]) not in KEYS[section]:
        problems.add_unknown_key(f'[grid] "{key}"', name, KEYS[section])
    if not isinstance(values, list) or not values:
        problems.add(f"[grid] {key!r} = {values!r}: expected a list of at least one value.")


def _check_arms(arms: Any, problems: Problems) -> None:
    if not isinstance(arms, list) or not all(isinstance(arm, Mapping) for arm in arms):
        problems.add("[[arms]]: expected a list of tables.")
        return
    for number, arm in enumerate(arms, 1):
        label = f"[[arms]] number {number}"
        if not isinstance(arm.get("name"), str):
            problems.add(f"{label}: a name is required.")
        _check_keys(f"{label}:", arm, ARM_KEYS, problems)
        if not isinstance(arm.get("grid", True), bool):
            problems.add(
                f"{label} grid = {arm['grid']!r}: expected true, or false for a method "
                "that [grid] does not change."
            )
        for section in (key for key in arm if key in KEYS):
            if isinstance(arm[section], Mapping):
                _check_keys(label, arm[section], KEYS[section], problems)
            else:
                problems.add(f"{label} {section}: expected a table, not {arm[section]!r}.")


def as_table(value: Any) -> Mapping[str, Any]:
    """The value if it is a table, else an empty one."""
    return value if isinstance(value, Mapping) else {}


# ------------------------------------------------------------------------------------------ values


def check_data(
    data: Table, ready: Mapping[str, Any], folder: Path, required: bool, problems: Problems
) -> None:
    """Check `[data]` and resolve its paths, which are relative to the experiment file."""
    if isinstance(data["dataset"], str):
        _resolve_dataset(data, ready, folder, required, problems)
    else:
        problems.add(
            f"[data] dataset = {data['dataset']!r}: expected the name of a data set, or the path "
            "of a table or of a folder of bags."
        )
    if isinstance(data.get("labels"), str):
        data["labels"] = _existing_file(data["labels"], "labels", folder, problems)
    for key in DATA_TEXTS:
        if not isinstance(data.get(key, ""), str):
            problems.add(f"[data] {key} = {data[key]!r}: expected a string.")
    if data.get("patient") not in (None, *PATIENT_MODES):
        problems.add(
            f"[data] patient = {data['patient']!r}: expected one of {', '.join(PATIENT_MODES)}."
        )
    if data["standardise"] is None:
        data["standardise"] = standardised_by_default(str(data["dataset"]))
    for key in ("standardise", *DATA_SWITCHES):
        if not isinstance(data.get(key, False), bool):
            problems.add(f"[data] {key} = {data[key]!r}: expected true or false.")


def _resolve_dataset(
    data: Table, ready: Mapping[str, Any], folder: Path, required: bool, problems: Problems
) -> None:
    from scmil.bags.datasets import split_options

    name = data["dataset"]
    try:
        base, _ = split_options(name)
    except OptionError as error:
        problems.add(f"[data] {error}")
        return
    if Path(name).suffix in TABLES:
        data["dataset"] = _existing_file(name, "dataset", folder, problems)
    elif base in ready:
        if required and not ready[base].ready:
            problems.add(f"[data] dataset = {name!r} is not available. {ready[base].remedy}")
    elif (folder / name).is_dir():
        data["dataset"] = str(folder / name)
    else:
        problems.add(
            f"[data] dataset = {name!r}: unknown data set.{suggestion(name, ready)} "
            f"There is no folder {folder / name}."
        )


def _existing_file(name: str, key: str, folder: Path, problems: Problems) -> str:
    path = folder / name
    if not path.is_file():
        problems.add(f"[data] {key}: {path} does not exist.")
    return str(path)


def check_protocol(protocol: Table, folder: Path, problems: Problems) -> None:
    """Check `[protocol]`; one selection protocol becomes a list, the path of splits is resolved."""
    if protocol["kind"] not in SPLIT_KINDS:
        kinds = ", ".join(SPLIT_KINDS)
        problems.add(f"[protocol] kind = {protocol['kind']!r}: expected one of {kinds}.")
    for key in ("folds", "repeats", "seed"):
        if message := problem(key, protocol[key]):
            problems.add(f"[protocol] {message}.")
    for key in ("valid", "test"):
        value = protocol[key]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1:
            problems.add(f"[protocol] {key} = {value!r}: expected a fraction between 0 and 1.")
    _check_selection(protocol, problems)
    if protocol["splits"] is not None:
        path = folder / str(protocol["splits"])
        if path.is_file():
            protocol["splits"] = str(path)
        else:
            problems.add(f"[protocol] splits: {path} does not exist.")


def _check_selection(protocol: Table, problems: Problems) -> None:
    selection = protocol["selection"]
    protocol["selection"] = selection = [selection] if isinstance(selection, str) else selection
    names = ", ".join(PROTOCOLS)
    if not isinstance(selection, list) or not selection:
        problems.add(f"[protocol] selection = {selection!r}: expected a list of some of {names}.")
        return
    if len(set(map(str, selection))) < len(selection):
        problems.add(f"[protocol] selection = {selection!r}: expected each protocol once.")
    for name in selection:
        if name not in PROTOCOLS:
            problems.add(
                f"[protocol] selection: unknown protocol {name!r}."
                f"{suggestion(str(name), PROTOCOLS)}"
            )


def check_training(model: Table, training: Table, problems: Problems) -> None:
    """Check `[training]`: the recipe with its changes, class weights, precision and device."""
    from scmil.training.fitting import PRECISIONS

    settings = TrainingSettings.from_json(training)
    try:
        recipe_of(ModelSettings.from_json(model), settings)
    except (ScmilError, TypeError) as error:
        problems.add(f"[training] {error}")
    weights = settings.class_weights
    are_numbers = isinstance(weights, list) and all(map(BOUNDS["class_weights"].holds, weights))
    if weights not in (None, "balanced") and not are_numbers:
        problems.add(
            f"[training] class_weights = {weights!r}: expected 'balanced', or a number above 0 "
            "for each class."
        )
    if settings.precision not in (None, *PRECISIONS):
        names = " or ".join(map(repr, PRECISIONS))
        problems.add(f"[training] precision = {settings.precision!r}: expected {names}.")
    if settings.keep_models not in (None, True, False):
        problems.add(f"[training] keep_models = {settings.keep_models!r}: expected true or false.")
    if settings.device is not None and not isinstance(settings.device, str):
        problems.add(
            f"[training] device = {settings.device!r}: expected a name such as 'cpu', 'cuda' or "
            "'cuda:1'."
        )


def check_model_table(table: Table, problems: Problems) -> None:
    """Check `[model]` by building the model without memory."""
    model = ModelSettings.from_json(table)
    if not model.is_network:
        options = ["embed"] * bool(table["embed"])
        options += ["options of the aggregator"] * isinstance(table["aggregator"], Mapping)
        for option in options:
            problems.add(
                f"[model] {option}: {baseline.NAME} is not a neural network; it takes only "
                "sparse_coding and refine, a layer that is not trained."
            )
        model = replace(model, aggregator="mean", embed=[])
    try:
        check_model(model)
    except (ScmilError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        problems.add(f"[model] {error}")


def check_localisation(
    tables: Mapping[str, Table], folders: Sequence[Path], required: bool, problems: Problems
) -> None:
    """Check `[localisation]` and find its annotations, beside the file or in the data folder."""
    own = tables["localisation"]
    _find_annotations(own, folders, required, problems)
    exclude = own["exclude"]
    if isinstance(exclude, list) and all(isinstance(name, str) for name in exclude):
        own["exclude"] = without_partly_annotated(exclude)
    else:
        problems.add(
            f"[localisation] exclude = {exclude!r}: expected a list of slides, or 'camelyon16'."
        )
        own["exclude"] = []
    try:
        rule_of(LocalisationSettings.from_json(own))
    except (ScmilError, TypeError) as error:
        problems.add(f"[localisation] {error}")
    if own["mpp"] is not None and (message := problem("slide_mpp", own["mpp"])):
        problems.add(f"[localisation] {message.removeprefix('slide_')}.")
    selection = tables["protocol"]["selection"]
    if isinstance(selection, list) and TEST_TUNED in selection:
        problems.add(
            f"[localisation]: {TEST_TUNED!r} keeps no model that could score tiles. Use 'last' or "
            "'nested'."
        )
    if not ModelSettings.from_json(tables["model"]).is_network:
        problems.add(
            f"[localisation]: {baseline.NAME} is not a neural network and cannot score tiles."
        )


def _find_annotations(
    own: Table, folders: Sequence[Path], required: bool, problems: Problems
) -> None:
    candidates = [folder / str(own["annotations"]) for folder in folders if own["annotations"]]
    found = next((path for path in candidates if path.is_dir()), None)
    if found is not None:
        own["annotations"] = str(found)
    elif required:
        searched = " and ".join(map(str, candidates)) or "nowhere, none is named"
        problems.add(
            f"[localisation] annotations: no folder of annotations was found (searched: "
            f"{searched}). Name the folder of <slide>.xml: --set localisation.annotations=FOLDER"
        )


# ------------------------------------------------------------------------------- published numbers


def published_rows(published: Any, folder: Path, problems: Problems) -> list[Table]:
    """`[report] published`: rows with a method and its numbers, or the name of a table of them."""
    if isinstance(published, str):
        return _read_published(folder / published, problems)
    if isinstance(published, list) and all(
        isinstance(row, Mapping) and "arm" in row for row in published
    ):
        return published
    problems.add(f"[report] published = {published!r}: expected the name of a table.")
    return []


def _read_published(path: Path, problems: Problems) -> list[Table]:
    """Read a table as papers print it: one row per method, two columns per data set."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [row for line in csv.DictReader(file) for row in _published_of_method(line)]
    except OSError as error:
        problems.add(f"[report] published: {path} cannot be read ({error.strerror}).")
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        problems.add(
            f"[report] published: {path}: {type(error).__name__} {error}; expected columns: "
            "method, sparse_coding, …"
        )
    return []


def _published_of_method(line: Mapping[str, str]) -> Iterable[Table]:
    arm = line["method"] + (" + SC" if line["sparse_coding"] == "true" else "")
    for column, value in line.items():
        if column in ("method", "sparse_coding") or column.endswith("_sd") or not value:
            continue
        sd = line.get(f"{column}_sd")
        yield {
            "arm": arm,
            "dataset": column,
            "accuracy": float(value),
            "sd": float(sd) if sd else None,
        }
