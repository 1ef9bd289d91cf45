"""Named factories with honest errors: the nearest name, the options that are taken, the extra to install."""

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
    """One registered thing: its factory, and the options that its name stands for."""

    name: str
    factory: Callable[..., T]
    summary: str
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that the factory takes."""
        return tuple(inspect.signature(self.factory).parameters)


class Registry(Generic[T]):
    """Things of one kind, by name. Other packages add theirs through entry points of the group `scmil.<kind>s`.

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
        self._outside_loaded = False

    def register(self, name: str, summary: str, **preset: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Register a factory under a name, with a line for `scmil ls`; further arguments are what the name stands for."""

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
        """Look a name up, or say which name was probably meant."""
        entries = self._all()
        if name not in entries:
            near = difflib.get_close_matches(name, entries, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UnknownNameError(f"unknown {self.kind} {name!r}.{hint} Known: {', '.join(entries)}.")
        return entries[name]

    def build(self, name: str, /, *args: Any, **options: Any) -> T:
        """Build the thing of that name; a wrong option is refused before anything is made."""
        entry = self.entry(name)
        try:
            inspect.signature(entry.factory).bind(*args, **{**entry.preset, **options})
        except TypeError as error:
            taken = ", ".join(option for option in entry.options if option not in entry.preset)
            raise OptionError(f"{self.kind} {name!r}: {error}. It takes: {taken}.") from None
        return entry.factory(*args, **{**entry.preset, **options})

    def _all(self) -> dict[str, Entry[T]]:
        if not self._outside_loaded:
            self._outside_loaded = (
                True  # before loading: a package that asks for names while it registers must not recurse
            )
            for point in entry_points(group=f"scmil.{self.kind}s"):
                if point.name in self._entries:
                    raise ValueError(f"{self.kind} {point.name!r} of {point.value} has the name of one of ours.")
                try:
                    factory = point.load()
                    summary = (inspect.getdoc(factory) or f"from {point.value}").partition("\n")[0]
                except ImportError as error:
                    factory, summary = _unavailable(self.kind, point.name, error), f"not available: {error}"
                self._entries[point.name] = Entry(point.name, factory, summary)
        return self._entries


def _unavailable(kind: str, name: str, cause: ImportError) -> Callable[..., Any]:
    """Stand in for an outside thing whose package cannot be imported, so that the others stay usable."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise MissingExtraError(f"{kind} {name!r} comes from a package that cannot be imported: {cause}.") from cause

    return refuse
