from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from scmil.core import registry
from scmil.core.registry import Registry
from scmil.errors import MissingExtraError, OptionError, UnknownNameError
from scmil.models import aggregators


@pytest.fixture
def fruits() -> Registry[str]:
    fruits: Registry[str] = Registry("fruit")

    @fruits.register("apple", "a fruit", colour="red")
    def apple(size: int, colour: str = "green") -> str:
        return f"{colour} apple of {size} cm"

    return fruits


def test_a_name_stands_for_its_options_and_they_can_be_changed(fruits: Registry[str]) -> None:
    assert fruits.build("apple", 5) == "red apple of 5 cm"
    assert fruits.build("apple", size=5, colour="yellow") == "yellow apple of 5 cm"


def test_the_nearest_name_is_suggested(fruits: Registry[str]) -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown fruit 'aple'\. Did you mean 'apple'\? Known: apple\."
    ):
        fruits.build("aple", 5)
    with pytest.raises(UnknownNameError, match=r"unknown fruit 'xyz'\. Known: apple\."):
        fruits.entry("xyz")


def test_an_unknown_option_is_reported_with_the_valid_ones() -> None:
    with pytest.raises(
        OptionError, match=r"aggregator 'abmil-gated': .*'heads'.* It takes: dim, classes, hidden\."
    ):
        aggregators.build("abmil-gated", 8, 2, heads=3)


def test_a_name_is_registered_once(fruits: Registry[str]) -> None:
    with pytest.raises(ValueError, match="registered twice"):
        fruits.register("apple", "again")(str)


def test_other_packages_add_theirs(fruits: Registry[str], monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("melon", "builtins:str", "scmil.fruits"),
        EntryPoint("kiwi", "no_such_package:kiwi", "scmil.fruits"),
    ]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: points if group == "scmil.fruits" else []
    )
    assert fruits.names() == ["apple", "melon", "kiwi"]
    assert "no_such_package" in fruits.entry("kiwi").summary
    with pytest.raises(
        MissingExtraError, match="fruit 'kiwi' comes from a package that cannot be imported"
    ):
        fruits.build("kiwi", 1)


def test_an_outside_name_cannot_replace_ours(
    fruits: Registry[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [EntryPoint("apple", "builtins:str", group)]
    )
    with pytest.raises(ValueError, match="has the name of a built-in one"):
        fruits.names()
