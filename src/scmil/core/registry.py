"""Registries of named factories; errors suggest the nearest name, the options or the extra."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from scmil.errors import MissingExtraError, OptionError, UnknownNameError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered factory and the options that its name implies."""

    name: str
    factory: Callable[..., T]
    summary: str
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options of the factory."""
        return tuple(inspect.signature(self.factory).parameters)


class Registry(Generic[T]):
    """Factories of one kind by name; other packages add entry points of the group `scmil.<kind>s`.

    >>> greetings = Registry("greeting")
    >>> @greetings.register("polite", "greets by name", word="Good day")
    ... def greet(name: str, word: str) -> str:
    ...     return f"{word}, {name}"
    >>> greetings.build("polite", name="Ada")
    'Good day, Ada'
    >>> greetings.build("polit", name="Ada")
    Traceback (most recent call last):
    ...
    scmil.errors.UnknownNameError: unknown greeting 'polit'. Did you mean 'polite'? Known: polite.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}
        self._has_entry_points = False

    def register(
        self, name: str, summary: str, **preset: Any
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Register a factory under a name.

        Args:
            name: The name.
            summary: A line for `scmil ls`.
            **preset: Options that the name implies.

        Raises:
            ValueError: If the name is registered already.
        """

        def decorate(factory: Callable[..., T]) -> Callable[..., T]:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice.")
            self._entries[name] = Entry(name, factory, summary, preset)
            return factory

        return decorate

    def names(self) -> list[str]:
        """All names, in the order of registration."""
        return list(self._all())

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._all().values())

    def entry(self, name: str) -> Entry[T]:
        """The entry of a name.

        Raises:
            UnknownNameError: If there is none; the message has the nearest name.
        """
        entries = self._all()
        if name not in entries:
            near = difflib.get_close_matches(name, entries, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UnknownNameError(
                f"unknown {self.kind} {name!r}.{hint} Known: {', '.join(entries)}."
            )
        return entries[name]

    def build(self, name: str, /, *args: Any, **options: Any) -> T:
        """Call the factory of that name.

        Raises:
            UnknownNameError: If the name is not registered.
            OptionError: If an option is unknown or missing.
        """
        entry = self.entry(name)
        try:
            inspect.signature(entry.factory).bind(*args, **{**entry.preset, **options})
        except TypeError as error:
            accepted = ", ".join(option for option in entry.options if option not in entry.preset)
            raise OptionError(f"{self.kind} {name!r}: {error}. It takes: {accepted}.") from None
        return entry.factory(*args, **{**entry.preset, **options})

    def _all(self) -> dict[str, Entry[T]]:
        if not self._has_entry_points:
            # Set before loading, so that a package that lists names while it registers does not
            # recurse.
            self._has_entry_points = True
            for point in entry_points(group=f"scmil.{self.kind}s"):
                if point.name in self._entries:
                    raise ValueError(
                        f"{self.kind} {point.name!r} of {point.value} has the name of a "
                        "built-in one."
                    )
                try:
                    factory = point.load()
                    summary = (inspect.getdoc(factory) or f"from {point.value}").partition("\n")[0]
                except ImportError as error:
                    factory, summary = (
                        _unavailable(self.kind, point.name, error),
                        f"not available: {error}",
                    )
                self._entries[point.name] = Entry(point.name, factory, summary)
        return self._entries


def _unavailable(kind: str, name: str, cause: ImportError) -> Callable[..., Any]:
    """A factory for a package that cannot be imported, so that the others can still be used."""

    def raise_error(*args: Any, **options: Any) -> Any:
        raise MissingExtraError(
            f"{kind} {name!r} comes from a package that cannot be imported: {cause}."
        ) from cause

    return raise_error
