"""Public features of tiles by name: where they are, what they are, and under which licence."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from scmil.core.download import cache as cache_folder
from scmil.errors import UnknownNameError

TABLE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class FeatureSet:
    """A published set of features.

    `include` are patterns of the files that are downloaded; `place` is the folder with the
    features after unpacking; `encoders` maps names in the set to cards of scmil.
    """

    name: str
    summary: str
    protocol: str
    licence: str
    hub: str = ""  # id of a data set of the Hugging Face hub
    hint: str = ""  # where the archive is, if it cannot be downloaded by its address
    include: tuple[str, ...] = ("*",)
    place: str = ""
    format: str = ""  # empty: detected
    gated: bool = False
    cohort: str = ""
    revision: str = "main"
    encoders: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Where the set is."""
        return f"https://huggingface.co/datasets/{self.hub}" if self.hub else self.hint

    def folder(self, out: Path | None = None) -> Path:
        """Where the files go."""
        return out or cache_folder() / "features" / self.name


@cache
def read_feature_sets() -> Mapping[str, FeatureSet]:
    """All sets by name."""
    page = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: FeatureSet(name, **{**values, "include": tuple(values.get("include", ("*",)))})
        for name, values in page.items()
    }


def find_feature_set(name: str, others: Sequence[str] = ()) -> FeatureSet:
    """The set of a name, or an error with the nearest name, also among `others`.

    >>> find_feature_set("camelyon16-torchmil").encoders["UNI"]
    'uni'
    """
    sets = read_feature_sets()
    if name not in sets:
        near = difflib.get_close_matches(name, [*sets, *others], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join([*others, *sets])
        raise UnknownNameError(f"unknown data set or feature set {name!r}.{hint} Known: {known}.")
    return sets[name]
