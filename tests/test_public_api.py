"""The public names are listed, have docstrings, and do not change without a word in the CHANGELOG.

`docs/public_api.json` is the picture of the last release that people build on. After a change that
is meant: python tests/test_public_api.py, and a line about it under "Next" in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

import scmil

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "public_api.json"


def look() -> dict[str, str]:
    """Every public name with the arguments it takes: their names, their kind, whether they have a
    default.
    """
    return {
        name: arguments(getattr(scmil, name))
        for name in sorted(set(scmil.__all__) - {"__version__"})
    }


def arguments(thing: object) -> str:
    """
    >>> arguments(lambda a, *, b=1: None), arguments(re)
    ('(a, *, b=)', 'module')
    """
    if not callable(thing):
        return "module"
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return "(...)"
    plain = [
        given.replace(
            annotation=given.empty,
            default=given.empty if given.default is given.empty else _Something,
        )
        for given in parameters
    ]
    return str(inspect.Signature(plain))


class _Default:
    def __repr__(self) -> str:
        return ""


_Something = _Default()


def unmentioned(before: dict[str, str], now: dict[str, str], news: str) -> list[str]:
    """The names that came, went or changed and that the news do not mention."""
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return sorted(name for name in changed if not re.search(rf"`(scmil\.)?{name}\b", news))


def news() -> str:
    """What the CHANGELOG says above the first version that is in the picture."""
    released = json.loads(PICTURE.read_text())["version"]
    return (ROOT / "CHANGELOG.md").read_text().partition(f"\n## {released}\n")[0]


def test_the_public_names_change_only_with_a_word_in_the_changelog() -> None:
    before = json.loads(PICTURE.read_text())["names"]
    assert unmentioned(before, look(), news()) == [], "say so in CHANGELOG.md under Next"


def test_every_release_has_its_picture() -> None:
    taken = json.loads(PICTURE.read_text())["version"]
    assert taken == scmil.__version__, "a new version: python tests/test_public_api.py"


def test_a_change_that_nobody_mentions_is_found() -> None:
    now = look()
    before = {**now, "fit": "(model)", "gone": "()"}
    assert unmentioned(before, now, "Next: more speed") == ["fit", "gone"]
    assert unmentioned(before, now, "Next: `fit(model, bags)`; `gone` is gone") == []


def test_public_names_exist_have_docstrings_and_are_listed() -> None:
    listed = set(re.findall(r"^- `(\w+)`", (ROOT / "docs" / "public_api.md").read_text(), re.M))
    assert listed == set(scmil.__all__) - {"__version__"}
    for name in scmil.__all__:
        assert name == "__version__" or getattr(scmil, name).__doc__
    assert set(scmil.__all__) <= set(dir(scmil))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        scmil.nothing


def test_types_are_for_users_too() -> None:
    assert (Path(scmil.__file__).parent / "py.typed").is_file()


if __name__ == "__main__":
    PICTURE.write_text(json.dumps({"version": scmil.__version__, "names": look()}, indent=1) + "\n")
