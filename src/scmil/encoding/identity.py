"""Check that the slides of a work folder are the files that its tiles and bags were made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scmil.core.fingerprint import sha256_of_json, stat_of
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.locks import locked, translate_os_errors
from scmil.core.safe_hdf5 import opened_h5
from scmil.core.safe_io import DAMAGE
from scmil.encoding.work_folder import Source, read_sources, tiles_file, tissue_file, write_sources
from scmil.errors import SlideError
from scmil.slides import slide_digest, slide_files

# The stage of the failure log for slides that are another file than the one that was tiled.
IDENTITY = "identity"


class Identities(NamedTuple):
    """The slides with their present file times, and the result of comparing them with their tiles.

    `replaced` maps the slides that are another file to the cause; `unknown` are those whose tiles
    do not record a digest.
    """

    present: list[Source]
    replaced: dict[str, str]
    unknown: tuple[str, ...] = ()


def record_sources(work: Path, sources: Sequence[Source]) -> tuple[list[Source], Identities]:
    """Add slides to slides.csv; return those with a unique name and an unchanged file.

    Slides with the same name are logged as failed. A slide that is another file than the one that
    was tiled keeps its earlier row.
    """
    counts = Counter(source.id for source in sources)
    unique = [source for source in sources if counts[source.id] == 1]
    failure_log = FailureLog(work)
    for source in sources:
        if counts[source.id] > 1:
            cause = (
                f"{counts[source.id]} slides have the name {source.id!r}, one of them is "
                f"{source.path}. Rename all but one."
            )
            failure_log.add(source.id, "tile", cause, str(source.path))
    with translate_os_errors(work), locked(work / "slides.csv", wait=True):  # shards start together
        has_table = (work / "slides.csv").is_file()
        before = {source.id: source for source in read_sources(work)} if has_table else {}
        identities = compare_with_tiles(work, unique, before)
        replaced = identities.replaced
        present = {source.id: source for source in identities.present if source.id not in replaced}
        write_sources(work, {**before, **present}.values())
    return [source for source in unique if source.id not in replaced], identities


def compare_with_tiles(
    work: Path, sources: Sequence[Source], before: Mapping[str, Source]
) -> Identities:
    """Compare slides with those that their tiles were made from, by file times, then by digest.

    Args:
        work: The work folder.
        sources: The slides to compare.
        before: The slides of slides.csv by name.
    """
    present, unknown = [], []
    replaced: dict[str, str] = {}
    for source in sources:
        now, old = source._replace(times=_file_times(source.path)), before.get(source.id)
        present.append(now)
        tiles = tiles_file(work, source.id)
        if now.times is None or old is None or not tiles.is_file():
            # Nothing to compare. A missing slide is reported by the stage that needs it.
            continue
        if (old.path, old.times) == (now.path, now.times):
            continue
        try:
            if (same := _is_same_slide(old, now, tiles)) is None:
                unknown.append(source.id)
            elif not same:
                replaced[source.id] = (
                    f"{now.path} is not the file that the tiles and bags of {source.id!r} in "
                    f"{work} were made from. Rename this slide, or use another folder; to replace "
                    f"the earlier slide, delete {tiles} and {tissue_file(work, source.id)}."
                )
        except SlideError as error:
            replaced[source.id] = (
                f"{error} It cannot be compared with the slide that {tiles} was made from."
            )
    _log_replaced(work, sources, replaced)
    return Identities(present, replaced, tuple(unknown))


def _is_same_slide(old: Source, now: Source, tiles: Path) -> bool | None:
    """Whether a slide has the digest that its tiles record; None if this cannot be decided."""
    expected = _read_digest(tiles)
    if expected is None:  # tiles of an earlier version
        if old.path == now.path:
            return None
        expected = slide_digest(old.path)
    return slide_digest(now.path) == expected


def _log_replaced(work: Path, sources: Sequence[Source], replaced: Mapping[str, str]) -> None:
    """Log the replaced slides, and clear the failures of those that are the original file again."""
    failure_log = FailureLog(work)
    logged = failure_log.among([source.id for source in sources], IDENTITY)
    for source in sources:
        if source.id in replaced:
            failure_log.add(source.id, IDENTITY, replaced[source.id], str(source.path))
        elif source.id in logged:
            failure_log.clear(source.id, IDENTITY)


def _file_times(path: Path) -> str | None:
    """A digest of the sizes and modification times of a slide's files; None if there are none."""
    try:
        files = slide_files(path)
        return sha256_of_json(stat_of(files))[:16] if files else None
    except OSError:
        return None


def _read_digest(tiles: Path) -> str | None:
    """The digest of the slide that tiles were made from, if they record it."""
    try:
        with opened_h5(tiles) as file:
            digest = file["coords"].attrs.get("slide_digest")
    except DAMAGE:
        return None  # damaged: tiled again
    return None if digest is None else str(digest)
