"""A table of a paper as a TOML file: scalars are fixed, `[grid]` is what varies, `[[arms]]` are the
methods, which are the rows of the table.

The file becomes a `Plan` of runs. Everything is checked first, and all problems are reported at
once.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scmil.core.limits import LARGEST_TOML, parse_toml
from scmil.core.regular_files import check_regular
from scmil.errors import ConfigError, ScmilError
from scmil.studies import config
from scmil.studies.config import DEFAULTS
from scmil.studies.from_settings import build_from_settings, check_model, recipe_of, rule_of
from scmil.studies.grid import Draft, expand, get_value, set_value
from scmil.studies.problems import Problems
from scmil.studies.settings import (
    DataSettings,
    LocalisationSettings,
    ModelSettings,
    ProtocolSettings,
    RunSettings,
    TrainingSettings,
    aggregator_of,
)
from scmil.studies.target_checks import TaskChecks

__all__ = [
    "DEFAULTS",
    "Cell",
    "DataSettings",
    "LocalisationSettings",
    "ModelSettings",
    "Plan",
    "ProtocolSettings",
    "RunSettings",
    "TrainingSettings",
    "aggregator_of",
    "build_from_settings",
    "check_model",
    "make_plan",
    "read_plan",
    "recipe_of",
    "rule_of",
]


@dataclass(frozen=True)
class Cell:
    """One run: a method on a data set, with all its settings. It is the unit of work."""

    name: str
    arm: str  # the method
    dataset: str
    settings: RunSettings

    @property
    def protocols(self) -> list[str]:
        """The selection protocols by which it is scored."""
        return list(self.settings.protocol.selection)

    @property
    def digest(self) -> str:
        """Changes with any setting: a result belongs to a run only if it has the same digest."""
        return self.settings.digest


@dataclass(frozen=True)
class Plan:
    """A whole experiment, checked."""

    name: str
    title: str
    about: str
    arms: tuple[tuple[str, str | None], ...]  # each method, and the one it is compared with
    cells: tuple[Cell, ...]
    published: tuple[dict[str, Any], ...]
    published_note: str

    @property
    def datasets(self) -> list[str]:
        """The data sets, in the order of the file."""
        return list(dict.fromkeys(cell.dataset for cell in self.cells))


def read_plan(
    path: Path, changes: Sequence[str] = (), data: Path | None = None, only: str | None = None
) -> Plan:
    """Read and check an experiment config.

    Args:
        path: The TOML file.
        changes: Overrides such as `training.epochs=2`.
        data: A folder with data sets.
        only: A pattern for names of runs; data sets that no such run needs may be missing.

    Returns:
        The plan of all runs.

    Raises:
        ConfigError: The file cannot be read, or has problems; all of them are listed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.toml"
    ...     _ = path.write_text('[data]\\ndataset = "musk1"\\n')
    ...     plan = read_plan(path, ["model.aggregator=dsmil"])
    >>> plan.name, [cell.name for cell in plan.cells]
    ('mine', ['musk1--dsmil'])
    """
    try:
        if check_regular(path) > LARGEST_TOML:
            raise ConfigError(f"{path} has more than {LARGEST_TOML} bytes, too many for settings.")
        document = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: the file does not exist.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: not readable as TOML ({error}).") from None
    problems = Problems()
    for change in changes:
        _override(document, change, problems)
    where = _Where(path.parent, data, only, str(path))
    return _make_plan(document, path.stem, where, problems)


def make_plan(
    document: Mapping[str, Any],
    name: str,
    *,
    folder: Path = Path("."),
    data: Path | None = None,
    only: str | None = None,
    where: str = "the experiment",
) -> Plan:
    """Check an experiment config and expand it into runs.

    Args:
        document: The tables of the config, as `tomllib` returns them.
        name: The name of the experiment.
        folder: The folder to which paths in the config are relative.
        data: A folder with data sets.
        only: A pattern for names of runs; data sets that no such run needs may be missing.
        where: What messages call the config.

    Returns:
        The plan of all runs.

    Raises:
        ConfigError: The config has problems; all of them are listed.

    >>> document = {"data": {"dataset": "musk1"}, "grid": {"model.sparse_coding": [False, True]}}
    >>> [cell.name for cell in make_plan(document, "mine").cells]
    ['musk1--abmil-gated', 'musk1--abmil-gated-sc']
    >>> wrong = {"model": {"agregator": "abmil"}, "training": {"epochs": "4"}}
    >>> make_plan({"data": {"dataset": "musk1"}, **wrong}, "mine")
    Traceback (most recent call last):
    ...
    scmil.errors.ConfigError: the experiment has 2 problems
      [model] agregator: unknown key. Did you mean 'aggregator'?
      [training] epochs = '4': a whole number from 1 to 100000.
    """
    return _make_plan(document, name, _Where(folder, data, only, where), Problems())


class _Where(NamedTuple):
    """Where the paths of a document lead, which runs are wanted, and what messages call it."""

    folder: Path
    data: Path | None
    only: str | None
    source: str


def _make_plan(document: Mapping[str, Any], name: str, where: _Where, problems: Problems) -> Plan:
    config.check_tables(document, problems)
    if problems.prevent_expansion:
        problems.raise_if_any(where.source)
    drafts, arms = expand(document, problems)
    _check_drafts(drafts, where, problems)
    report = document.get("report", {})
    published = config.published_rows(report.get("published", []), where.folder, problems)
    problems.raise_if_any(where.source)
    return Plan(
        name=name,
        title=str(document.get("title", name)),
        about=str(document.get("about", "")),
        arms=tuple(arms.items()),
        cells=tuple(
            Cell(draft.name, draft.arm, draft.dataset, RunSettings.from_json(draft.tables))
            for draft in drafts
        ),
        published=tuple(row for row in published if row["arm"] in arms),
        published_note=str(report.get("published_note", "")),
    )


def _override(document: dict[str, Any], change: str, problems: Problems) -> None:
    """Apply `a.b=c`: c is read as TOML, or else taken as a string."""
    key, separator, text = change.partition("=")
    if not separator or not key.strip():
        problems.add(f"--set {change}: expected key=value, such as training.epochs=2.")
        return
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ScmilError as error:
        problems.add(f"--set {key}: {error}.")
        return
    except ValueError:
        value = text.strip()
    key = key.strip()
    document.get("grid", {}).pop(key, None)  # a key that is set does not vary
    arms = [arm for arm in document.get("arms", []) if get_value(arm, key) is not None]
    for table in [document, *arms]:
        set_value(table, key, value)


def _check_drafts(drafts: Sequence[Draft], where: _Where, problems: Problems) -> None:
    from scmil.bags import datasets

    ready = {status.name: status for status in datasets.dataset_status(where.data)}
    folders = [where.folder, *([where.data] if where.data else [])]
    checked: set[str] = set()
    tasks = TaskChecks(problems, where.data)
    for draft in drafts:
        tables = draft.tables
        config.check_protocol(tables["protocol"], where.folder, problems)
        config.check_training(tables["model"], tables["training"], problems)
        model = json.dumps(tables["model"], sort_keys=True, default=str)
        if model not in checked:
            checked.add(model)
            config.check_model_table(tables["model"], problems)
        required = fnmatch.fnmatch(draft.name, where.only or "*")
        config.check_data(tables["data"], ready, where.folder, required, problems)
        if "localisation" in tables:
            config.check_localisation(tables, folders, required, problems)
        tasks.check(draft)
    tasks.check_one_task()
