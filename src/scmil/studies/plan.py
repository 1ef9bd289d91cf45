"""A table of a paper as a TOML file: scalars are fixed, `[grid]` is what varies, `[[arms]]` are the rows of the table.

The file becomes a `Plan` of cells. Everything is checked first, and all mistakes are listed at once.
"""

from __future__ import annotations

import copy
import csv
import difflib
import fnmatch
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scmil.training import baseline
from scmil.errors import ConfigError, ScmilError
from scmil.core.files import check_regular
from scmil.limits import BOUNDS, LARGEST_TOML, MOST_CELLS, parse_toml, problem

PROTOCOLS = ("last", "nested", "test-tuned")
KINDS = ("kfold", "holdout", "official")

# Every key that a file may have, with its default. `model` and `training` take what build_model and Recipe take.
DEFAULTS: dict[str, dict[str, Any]] = {
    "data": {"dataset": None, "standardise": True},
    "protocol": {
        "kind": "kfold", "folds": 10, "repeats": 1, "seed": 0, "selection": ["last"], "valid": 0.2, "test": 0.2,
        "splits": None,
    },
    "model": {"aggregator": "abmil-gated", "sparse_coding": False, "refine": None, "embed": None},
    "training": {"recipe": "paper"},
}  # fmt: skip
RECIPE_KEYS = (
    "epochs", "learning_rate", "weight_decay", "betas", "optimiser", "schedule", "final_rate", "decay_weights_only", "clip",
    "patience",
)  # fmt: skip
TRAINING_KEYS = (
    "class_weights",
    "device",
    "precision",
)  # of how it is trained, not of the recipe; no defaults, as below
# Which bags, where a data set needs more than its name: no default, so that a plan without them says nothing of them.
DATA_KEYS = ("name", "labels", "label", "key", "format", "missing", "allow_missing", "drop_unlabelled")
# Where the lesions of the test slides are, to score their localisation; a plan without the table says nothing of it.
LOCALISATION: dict[str, Any] = {
    "annotations": None, "class": None, "score": "probability", "rule": "peaks", "radius_um": None, "smooth_um": 0.0,
    "least": None, "mpp": None, "exclude": [],
}  # fmt: skip
TABLES = (".csv", ".npz", ".svm", ".mat")
MOST_NAMED, MOST_COMPARED = 40, 400  # names in a message, and names or letters that a wrong one is compared with
REPORT_KEYS = ("pair", "published", "published_note")
TOP_KEYS = ("title", "about", *DEFAULTS, "localisation", "grid", "arms", "report")

Settings = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One arm on one data set: the unit of work, with everything that it needs to know."""

    name: str
    arm: str
    dataset: str
    settings: Settings

    @property
    def protocols(self) -> list[str]:
        """The protocols by which it is scored."""
        return list(self.settings["protocol"]["selection"])

    @property
    def digest(self) -> str:
        """Changes with any setting: a result belongs to a cell only if it has the same."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Plan:
    """A whole experiment, checked."""

    name: str
    title: str
    about: str
    arms: tuple[tuple[str, str | None], ...]  # name, and the arm it is compared with
    cells: tuple[Cell, ...]
    published: tuple[dict[str, Any], ...]
    published_note: str

    @property
    def datasets(self) -> list[str]:
        """The data sets, in the order of the file."""
        return list(dict.fromkeys(cell.dataset for cell in self.cells))


def read_plan(path: Path, changes: Sequence[str] = (), data: Path | None = None, only: str | None = None) -> Plan:
    """Read and check an experiment; `changes` are overrides such as `training.epochs=2`, applied to the file.

    With `only`, a pattern for names of cells, data sets that no such cell needs may be missing.
    """
    try:
        if check_regular(path) > LARGEST_TOML:
            raise ConfigError(f"{path} has more than {LARGEST_TOML} bytes: an experiment is a page.")
        document = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: not readable as TOML ({error}).") from None
    problems: list[str] = []
    for change in changes:
        _override(document, change, problems)
    return make_plan(document, path.stem, folder=path.parent, data=data, only=only, where=str(path), problems=problems)


def make_plan(
    document: Mapping[str, Any],
    name: str,
    *,
    folder: Path = Path("."),
    data: Path | None = None,
    only: str | None = None,
    where: str = "the experiment",
    problems: list[str] | None = None,
) -> Plan:
    """Check a document as it comes from TOML and expand it into cells.

    >>> plan = make_plan({"data": {"dataset": "musk1"}, "grid": {"model.sparse_coding": [False, True]}}, "mine")
    >>> [cell.name for cell in plan.cells]
    ['musk1--abmil-gated', 'musk1--abmil-gated-sc']
    >>> make_plan({"data": {"dataset": "musk1"}, "model": {"agregator": "abmil"}, "training": {"epochs": "4"}}, "mine")
    Traceback (most recent call last):
    ...
    scmil.errors.ConfigError: the experiment has 2 problems
      [model] agregator: unknown key. Did you mean 'aggregator'?
      [training] epochs = '4': a whole number from 1 to 100000.
    """
    problems = [] if problems is None else problems
    _check_shape(document, problems)
    if any("unknown key" not in problem for problem in problems):  # otherwise the rest can be looked at as well
        raise _config_error(where, problems)
    cells, arms = _expand(document, problems)
    _check_cells(cells, folder, data, only, problems)
    report = document.get("report", {})
    published = report.get("published", [])
    if isinstance(published, str):
        published = _published(folder / published, problems)
    elif not isinstance(published, list) or not all(isinstance(row, Mapping) and "arm" in row for row in published):
        problems.append(f"[report] published = {published!r}: the name of a table is needed.")
        published = []
    if problems:
        raise _config_error(where, problems)
    known = dict(arms)
    return Plan(
        name=name,
        title=str(document.get("title", name)),
        about=str(document.get("about", "")),
        arms=tuple(arms),
        cells=tuple(cells),
        published=tuple(row for row in published if row["arm"] in known),
        published_note=str(report.get("published_note", "")),
    )


def _config_error(where: str, problems: Sequence[str]) -> ConfigError:
    unique = list(dict.fromkeys(problems))
    count = "1 problem" if len(unique) == 1 else f"{len(unique)} problems"
    return ConfigError(f"{where} has {count}\n  " + "\n  ".join(unique))


# ------------------------------------------------------------------------------------------------------- the document


def _override(document: dict[str, Any], change: str, problems: list[str]) -> None:
    """`a.b=c`: c is read as TOML, or taken as a word."""
    key, separator, text = change.partition("=")
    if not separator or not key.strip():
        problems.append(f"--set {change}: expected key=value, such as training.epochs=2.")
        return
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ScmilError as error:
        problems.append(f"--set {key}: {error}.")
        return
    except ValueError:
        value = text.strip()
    key = key.strip()
    document.get("grid", {}).pop(key, None)  # what is set varies no more
    for part in [document, *(arm for arm in document.get("arms", []) if _get(arm, key) is not None)]:
        _put(part, key, value)


def _check_shape(document: Mapping[str, Any], problems: list[str]) -> None:
    """Unknown keys and wrong kinds, everywhere."""
    for key in document:
        if key not in TOP_KEYS:
            problems.append(f"{key}: unknown key.{_nearest(key, TOP_KEYS)}")
    for section in (*DEFAULTS, "localisation", "grid", "report"):
        if section in document and not isinstance(document[section], Mapping):
            problems.append(f"[{section}]: a table is needed, not {document[section]!r}.")
    for section in DEFAULTS:
        _check_keys(section, document.get(section, {}), problems)
    for section, known in (("report", REPORT_KEYS), ("localisation", tuple(LOCALISATION))):
        for key in _mapping(document.get(section)):
            if key not in known:
                problems.append(f"[{section}] {key}: unknown key.{_nearest(key, known)}")
    for key, values in _mapping(document.get("grid")).items():
        section, _, rest = key.partition(".")
        if section not in DEFAULTS or not rest:
            problems.append(f'[grid] {key!r}: a key such as "data.dataset" is needed, of {", ".join(DEFAULTS)}.')
        else:
            _check_keys(section, {rest.partition(".")[0]: None}, problems, f'[grid] "{key}"')
        if not isinstance(values, list) or not values:
            problems.append(f"[grid] {key!r} = {values!r}: a list of at least one value is needed.")
    arms = document.get("arms", [])
    if not isinstance(arms, list) or not all(isinstance(arm, Mapping) for arm in arms):
        problems.append("[[arms]]: a list of tables is needed.")
        return
    for number, arm in enumerate(arms, 1):
        label = f"[[arms]] number {number}"
        if not isinstance(arm.get("name"), str):
            problems.append(f"{label}: a name is needed.")
        for key in arm:
            if key in DEFAULTS:
                _check_keys(key, arm[key], problems, label)
            elif key not in ("name", "against"):
                problems.append(f"{label}: {key}: unknown key.{_nearest(key, ('name', 'against', *DEFAULTS))}")


def _check_keys(section: str, table: Any, problems: list[str], label: str | None = None) -> None:
    known = _known(section)
    if not isinstance(table, Mapping):
        problems.append(f"{label or ''} {section}: a table is needed, not {table!r}.".strip())
        return
    for key in table:
        if key not in known:
            problems.append(f"{label or f'[{section}]'} {key}: unknown key.{_nearest(key, known)}")


def _known(section: str) -> tuple[str, ...]:
    return (*DEFAULTS[section], *{"training": (*RECIPE_KEYS, *TRAINING_KEYS), "data": DATA_KEYS}.get(section, ()))


def _nearest(word: str, known: Iterable[str]) -> str:
    some = list(known)[:MOST_COMPARED]
    near = difflib.get_close_matches(word[:MOST_COMPARED], some, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(some[:MOST_NAMED])}."


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------------------------------------------------- the cells


def _expand(document: Mapping[str, Any], problems: list[str]) -> tuple[list[Cell], list[tuple[str, str | None]]]:
    """Arms times grid: each cell has its whole settings."""
    base: Settings = copy.deepcopy(DEFAULTS)
    _merge(base, {section: document[section] for section in DEFAULTS if section in document})
    if "localisation" in document:
        base["localisation"] = copy.deepcopy(LOCALISATION | dict(document["localisation"]))
    rows: list[Any] = document.get("arms") or [{"name": None}]
    grid = {
        key: values
        for key, values in document.get("grid", {}).items()
        if key.split(".")[1] in _known(key.split(".")[0])
    }
    datasets = grid.pop("data.dataset", None)
    cells: list[Cell] = []
    arms: dict[str, str | None] = {}
    slugs: Counter[str] = Counter()
    count = len(rows) * len(datasets or [0]) * math.prod(map(len, grid.values()))
    if count > MOST_CELLS:  # before they are made
        problems.append(f"[grid]: {count} cells, and {MOST_CELLS} is the most. Divide it into several files.")
        return [], []
    pair: str | None = _mapping(document.get("report")).get("pair")
    for row, choice in itertools.product(rows, _choices(grid)):
        settings = copy.deepcopy(base)
        _merge(settings, {section: row[section] for section in DEFAULTS if section in row})
        for key, value in choice.items():
            _put(settings, key, value)
        name = _arm_name(row["name"], settings, choice)
        against = row.get("against")
        if pair is not None and pair in choice and choice[pair] != grid[pair][0]:
            partner = copy.deepcopy(settings)
            _put(partner, pair, grid[pair][0])
            against = _arm_name(row["name"], partner, {**choice, pair: grid[pair][0]})
        slug = _slug(name)  # mi-Net and MI-Net share one, and so do files on many systems
        if name in arms:
            problems.append(f"two arms have the name {name!r}.")
        else:
            slugs[slug] += 1
        arms[name] = against
        slug = f"{slug}-{slugs[slug]}" if slugs[slug] > 1 else slug
        for dataset in datasets or [settings["data"]["dataset"]]:
            own = copy.deepcopy(settings)
            own["data"]["dataset"] = dataset
            named = None if datasets else own["data"].get("name")
            short = str(named) if named else Path(str(dataset)).stem if dataset else "nothing"
            cells.append(Cell(f"{_slug(short)}--{slug}", name, short, own))
    missing: dict[str, str] = {}  # the first arm of each name that is missing: of a large grid thousands may name it
    for name, against in arms.items():
        if against is not None and (not isinstance(against, str) or against not in arms):
            missing.setdefault(str(against), name)
    problems += [
        f"[[arms]] {name}: against = {against!r}: there is no such arm.{_nearest(against, arms)}"
        for against, name in list(missing.items())[:MOST_NAMED]
    ]
    if pair is not None and pair not in grid:
        problems.append(f"[report] pair = {pair!r}: not a key of [grid].{_nearest(str(pair), grid) if grid else ''}")
    names = Counter(cell.name for cell in cells)
    problems += [f"two cells have the name {name!r}." for name, count in names.items() if count > 1]
    return cells, list(arms.items())


def _choices(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _arm_name(given: str | None, settings: Settings, choice: Mapping[str, Any]) -> str:
    """The row's own name, or what the model is; then what else varies."""
    model = settings["model"]
    parts = [given] if given else [_short(model["aggregator"])]
    for key, value in choice.items():
        if key == "model.aggregator" and not given:
            continue
        if key == "model.sparse_coding" and not isinstance(value, Mapping):
            parts.append("+ SC" if value else "")
        elif key == "model.refine" and isinstance(value, str):
            parts.append({"sparse-coding": "+ SC"}.get(value, f"+ {value}"))
        else:
            parts.append(f"{key.partition('.')[2]}={_short(value)}")
    if given is None and "model.sparse_coding" not in choice and "model.refine" not in choice:
        refine = model["refine"] or ("SC" if model["sparse_coding"] else None)
        parts.append(f"+ {refine}" if refine else "")
    return " ".join(part for part in parts if part)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(_short(v) if k == "name" else f"{k}={_short(v)}" for k, v in value.items())
    return "-".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _merge(into: Settings, new: Mapping[str, Any]) -> None:
    for section, table in new.items():
        into[section] |= {key: copy.deepcopy(value) for key, value in table.items() if key in _known(section)}


def _get(table: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return None
        table = table[part]
    return table


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        if not isinstance(table.get(part), dict):
            table[part] = {}
        table = table[part]
    table[last] = copy.deepcopy(value)


# ---------------------------------------------------------------------------------------------------------- the values


def _check_cells(cells: Sequence[Cell], folder: Path, data: Path | None, only: str | None, problems: list[str]) -> None:
    from scmil.bags import datasets

    ready = {status.name: status for status in datasets.status(data)}
    checked: set[str] = set()
    for cell in cells:
        settings = cell.settings
        _check_protocol(settings["protocol"], folder, problems)
        _check_recipe(settings, problems)
        if (model := json.dumps(settings["model"], sort_keys=True, default=str)) not in checked:
            checked.add(model)
            _check_model(settings["model"], problems)
        wanted = fnmatch.fnmatch(cell.name, only or "*")
        _check_data(settings["data"], ready, folder, wanted, problems)
        if "localisation" in settings:
            _check_localisation(settings, [folder, *([data] if data else [])], wanted, problems)


def _check_data(data: Settings, ready: Mapping[str, Any], folder: Path, wanted: bool, problems: list[str]) -> None:
    """Paths are relative to the file, and become absolute or relative to the working folder as the file's is."""
    name = data["dataset"]
    if not isinstance(name, str):
        problems.append(f"[data] dataset = {name!r}: the name of a data set, or the path of a table, is needed.")
    elif Path(name).suffix in TABLES:
        data["dataset"] = _path(data, "dataset", folder, problems)
    elif name in ready:
        if wanted and not ready[name].ready:
            problems.append(f"[data] dataset = {name!r} is not here. {ready[name].remedy}")
    elif (folder / name).is_dir():
        data["dataset"] = str(folder / name)
    else:
        near = _nearest(name, ready)
        problems.append(f"[data] dataset = {name!r}: unknown data set.{near} There is no folder {folder / name}.")
    if isinstance(data.get("labels"), str):
        data["labels"] = _path(data, "labels", folder, problems)
    for key in ("name", "labels", "label", "key", "format", "missing"):
        if not isinstance(data.get(key, ""), str):
            problems.append(f"[data] {key} = {data[key]!r}: a word is needed.")
    for key in ("standardise", "allow_missing", "drop_unlabelled"):
        if not isinstance(data.get(key, False), bool):
            problems.append(f"[data] {key} = {data[key]!r}: true or false.")


def _path(data: Settings, key: str, folder: Path, problems: list[str]) -> str:
    path = folder / data[key]
    if not path.is_file():
        problems.append(f"[data] {key}: {path} is not there.")
    return str(path)


def _check_protocol(protocol: Settings, folder: Path, problems: list[str]) -> None:
    if protocol["kind"] not in KINDS:
        problems.append(f"[protocol] kind = {protocol['kind']!r}: one of {', '.join(KINDS)}.")
    for key in ("folds", "repeats", "seed"):
        if said := problem(key, protocol[key]):
            problems.append(f"[protocol] {said}.")
    for key in ("valid", "test"):
        value = protocol[key]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1:
            problems.append(f"[protocol] {key} = {value!r}: a share between 0 and 1.")
    selection = protocol["selection"]
    protocol["selection"] = selection = [selection] if isinstance(selection, str) else selection
    if not isinstance(selection, list) or not selection or len(set(map(str, selection))) < len(selection):
        problems.append(f"[protocol] selection = {selection!r}: a list of some of {', '.join(PROTOCOLS)}.")
    else:
        problems += [
            f"[protocol] selection: unknown protocol {name!r}.{_nearest(str(name), PROTOCOLS)}"
            for name in selection
            if name not in PROTOCOLS
        ]
    if protocol["splits"] is not None:
        path = folder / str(protocol["splits"])
        if path.is_file():
            protocol["splits"] = str(path)
        else:
            problems.append(f"[protocol] splits: {path} is not there.")


def _check_localisation(settings: Settings, folders: Sequence[Path], wanted: bool, problems: list[str]) -> None:
    """Annotations lie beside the file or in the folder of the data; `exclude` may name the slides that are not outlined."""
    own = settings["localisation"]
    places = [folder / str(own["annotations"]) for folder in folders if own["annotations"]]
    found = next((place for place in places if place.is_dir()), None)
    if found is not None:
        own["annotations"] = str(found)
    elif wanted:
        met = " and ".join(map(str, places)) or "nothing"
        remedy = "Name the folder of <slide>.xml: --set localisation.annotations=FOLDER"
        problems.append(f"[localisation] annotations: no folder of outlines is here (looked at {met}). {remedy}")
    if not isinstance(own["exclude"], list) or not all(isinstance(id, str) for id in own["exclude"]):
        problems.append(f"[localisation] exclude = {own['exclude']!r}: a list of slides, or 'camelyon16', is needed.")
    else:
        own["exclude"] = without_partly_outlined(own["exclude"])
    try:
        rule_of(own)
    except (ScmilError, TypeError) as error:
        problems.append(f"[localisation] {error}")
    if own["mpp"] is not None and (said := problem("slide_mpp", own["mpp"])):
        problems.append(f"[localisation] {said.removeprefix('slide_')}.")
    if "test-tuned" in settings["protocol"]["selection"]:
        problems.append("[localisation]: 'test-tuned' keeps no model to look at. Take last or nested.")
    if aggregator_of(settings["model"]) == baseline.NAME:
        problems.append(f"[localisation]: {baseline.NAME} is not a network, and has no score of tiles.")


def without_partly_outlined(exclude: Iterable[str]) -> list[str]:
    """Slides to leave out, with the word `camelyon16` replaced by those of its slides in which tumour is not outlined.

    >>> without_partly_outlined(["mine", "camelyon16"])[::21]
    ['mine', 'test_114']
    """
    from scmil.bags.datasets.camelyon16 import not_exhaustively_annotated

    return [id for word in exclude for id in (not_exhaustively_annotated() if word == "camelyon16" else [word])]


def rule_of(own: Settings) -> Any:
    """The rule that the `[localisation]` table describes.

    >>> rule_of(LOCALISATION | {"score": "ratio"}).score
    'ratio'
    """
    from scmil.stats.localisation import Rule

    return Rule(own["score"], own["rule"], own["radius_um"], own["smooth_um"], own["least"])


def _check_recipe(settings: Settings, problems: list[str]) -> None:
    try:
        recipe_of(settings)
    except (ScmilError, TypeError) as error:
        problems.append(f"[training] {error}")
    weights, device, precision = (settings["training"].get(key) for key in TRAINING_KEYS)
    numbers = isinstance(weights, list) and all(map(BOUNDS["class_weights"].holds, weights))
    if weights not in (None, "balanced") and not numbers:
        problems.append(f"[training] class_weights = {weights!r}: 'balanced', or a number above 0 for each class.")
    if precision not in (None, "float32", "bfloat16"):
        problems.append(f"[training] precision = {precision!r}: 'float32' or 'bfloat16'.")
    if device is not None and not isinstance(device, str):
        problems.append(f"[training] device = {device!r}: a word such as 'cpu', 'cuda' or 'cuda:1'.")


def recipe_of(settings: Settings) -> Any:
    """The recipe of a cell: by its name, or, for "official", the one that the authors of its aggregator published.

    >>> recipe_of({"training": {"recipe": "official", "epochs": 3}, "model": {"aggregator": "dsmil"}}).betas
    (0.5, 0.9)
    """
    from scmil.training import recipes

    changes = {key: value for key, value in settings["training"].items() if key not in TRAINING_KEYS}
    name, aggregator = str(changes.pop("recipe")), aggregator_of(settings["model"])
    if name != "official":
        return recipes.recipe(name, **changes)
    if aggregator == baseline.NAME:  # not a network: nothing of a recipe concerns it
        return recipes.Recipe(epochs=1)
    return replace(recipes.official(aggregator), **changes)


def aggregator_of(model: Settings) -> str:
    """The name of the aggregator, with or without options.

    >>> aggregator_of({"aggregator": {"name": "abmil", "hidden": 64}})
    'abmil'
    """
    own = model["aggregator"]
    return str(own.get("name") if isinstance(own, Mapping) else own)


def _check_model(model: Settings, problems: list[str]) -> None:
    if aggregator_of(model) == baseline.NAME:
        options = [key for key in ("sparse_coding", "refine", "embed") if model[key]]
        options += ["its options"] * isinstance(model["aggregator"], Mapping)
        problems += [f"[model] {option}: {baseline.NAME} is not a network, and takes none." for option in options]
        return
    try:
        check_model(model)
    except (ScmilError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        problems.append(f"[model] {error}")


def check_model(model: Settings) -> None:
    """Refuse a `[model]` table that no model can be built from."""
    import torch

    with torch.device("meta"):  # shapes without memory
        build(model, dim=64, classes=2, seed=None)


def build(model: Settings, dim: int, classes: int, seed: int | None) -> Any:
    """The model that the `[model]` table describes."""
    from scmil.models.model import build_model

    return build_model(
        dim,
        classes,
        model["aggregator"],
        model["sparse_coding"] or None,
        refine=model["refine"],
        embed=model["embed"],
        seed=seed,
    )


# ----------------------------------------------------------------------------------------------------- published numbers


def _published(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """A table as papers print it: a row a method, with and without sparse coding, two columns a data set."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        found = []
        for row in rows:
            arm = row["method"] + (" + SC" if row["sparse_coding"] == "true" else "")
            for column in row:
                if column not in ("method", "sparse_coding") and not column.endswith("_sd") and row[column]:
                    sd = row.get(f"{column}_sd")
                    found.append(
                        {"arm": arm, "dataset": column, "accuracy": float(row[column]), "sd": float(sd) if sd else None}
                    )
        return found
    except OSError as error:
        problems.append(f"[report] published: {path} cannot be read ({error.strerror}).")
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        problems.append(
            f"[report] published: {path}: {type(error).__name__} {error}; columns: method, sparse_coding, …"
        )
    return []
