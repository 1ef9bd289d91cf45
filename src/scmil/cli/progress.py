"""The progress bars of the commands. Without a terminal there are none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scmil.cli.output import say
from scmil.core.text import printable

Callback = Callable[[str, int, int], None]


class ProgressBars:
    """One bar per description. Without a display every method does nothing."""

    def __init__(self, display: Any = None) -> None:
        self._display = display
        self._tasks: dict[str, Any] = {}

    @property
    def visible(self) -> bool:
        """Whether the bars are drawn."""
        return self._display is not None

    @property
    def callback(self) -> Callback | None:
        """`update` for functions that take a progress callback; None if nothing is drawn."""
        return self.update if self.visible else None

    def update(self, description: str, done: int, total: int | None) -> None:
        """Set a bar; the first call adds it. A total of None means that it is not known yet."""
        if self._display is None:
            return
        if description not in self._tasks:
            self._tasks[description] = self._display.add_task(description, total=total)
        self._display.update(self._tasks[description], completed=done, total=total)

    def remove(self, description: str) -> None:
        """Remove a bar if it exists."""
        if description in self._tasks:
            self._display.remove_task(self._tasks.pop(description))


@contextmanager
def progress_bars(quiet: bool, console: Any = None) -> Iterator[ProgressBars]:
    """Draw bars on standard error, unless `quiet` or standard error is not a terminal."""
    if console is None and (quiet or not sys.stderr.isatty()):
        yield ProgressBars()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class PlainTextColumn(TextColumn):
        """The description without markup, since it contains names of files."""

        def render(self, task: Any) -> Any:
            return Text(printable(task.description))

    columns = (
        PlainTextColumn(""),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as display:
        yield ProgressBars(display)


class SlideProgress:
    """Progress over the slides of a stage and over the tiles of the current slide.

    Without a terminal, one line per processed slide is printed instead.
    """

    def __init__(self, bars: ProgressBars) -> None:
        self._bars = bars
        self._stage, self._total, self._done = "", 0, 0
        self._current: str | None = None

    def start(self, stage: str, slides: int) -> None:
        """Start a stage with this number of slides."""
        self._stage, self._total, self._done = f"{stage}, slides", slides, 0
        self._bars.update(self._stage, 0, slides)

    def finish_slide(self, name: str, state: str) -> None:
        """Count a slide whose state is done, kept, failed or taken."""
        if not self._bars.visible:
            if state != "kept" and not sys.stderr.isatty():
                say(printable(f"{state}: {name}"), err=True)
            return
        if self._current is not None:
            self._bars.remove(self._current)
            self._current = None
        if self._stage:
            self._done += 1
            self._bars.update(self._stage, self._done, self._total)

    def update_tiles(self, name: str, done: int, total: int) -> None:
        """Set the number of encoded tiles of a slide."""
        if self._current is None:
            self._current = f"  {name}, tiles"
        self._bars.update(self._current, done, total)


@contextmanager
def slide_progress(quiet: bool) -> Iterator[SlideProgress]:
    """Draw bars over slides and their tiles."""
    with progress_bars(quiet) as bars:
        yield SlideProgress(bars)


@contextmanager
def run_progress(cells: Any, folder: Path, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """Draw a bar over the epochs of all runs and one for each run in progress.

    Without bars, one line per finished run is printed. Yields the callbacks for progress and for
    a finished run.
    """
    with progress_bars(quiet) as bars:
        if not bars.visible:
            yield None, (lambda name: say(f"done: {name}", err=True))
            return
        from scmil.studies.runner import is_done

        waiting = sum(not is_done(folder, cell) for cell in cells)
        # The first bar counts epochs, so that the remaining time is known before a run ends.
        everything = "all runs, epochs"
        bars.update(everything, 0, None)
        epochs: dict[str, int] = {}

        def progress(name: str, done: int, total: int) -> None:
            epochs[name] = done
            bars.update(f"  {name}", done, total)
            bars.update(everything, sum(epochs.values()), total * waiting)

        yield progress, (lambda name: bars.remove(f"  {name}"))
