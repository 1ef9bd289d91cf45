"""Where the slides and their annotations are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scmil.encoding.cohort import find_cohort
from scmil.errors import DataError, OptionError
from scmil.bags.labels import slide_id
from scmil.slides.annotations.lookup import find_annotation


@dataclass(frozen=True)
class Sources:
    """The files of slides by the slides' ids, and the folder of annotations, if there is one."""

    slides: Mapping[str, list[Path]]  # several files for one id are refused when the slide is drawn
    folder: Path | None  # None: no slides are given
    annotations: Path | None

    @classmethod
    def of(cls, slides: str | Path | None, annotations: str | Path | None, out: Path) -> Sources:
        """Look for the slides; our own pictures, which may be below the same folder, are none."""
        folder, drawn = (None if path is None else Path(path) for path in (slides, annotations))
        if out.resolve() in [path.resolve() for path in (folder, drawn) if path is not None]:
            raise OptionError(
                f"{out} holds slides or annotations. Give --out a folder of its own, so that none is lost."
            )
        if drawn is not None and not drawn.is_dir():
            raise DataError(f"{drawn} is not a folder. Give the one with the files <slide>.xml or <slide>.geojson.")
        found: dict[str, list[Path]] = {}
        for source in find_cohort(folder) if folder is not None else ():
            if out.resolve() not in source.path.resolve().parents:
                found.setdefault(slide_id(source.id), []).append(source.path)
        return cls(found, folder, drawn)

    def file(self, id: str) -> str:
        """The file of a slide, for the ledger."""
        return ", ".join(map(str, self.slides.get(slide_id(id), [])))

    def slide(self, id: str) -> Path | None:
        """The file of a slide; None if no slides are given."""
        if self.folder is None:
            return None
        paths = self.slides.get(slide_id(id), [])
        if not paths:
            raise DataError(
                f"{self.folder} has no slide {id!r}. Put its file there, or leave --slides out to draw on a plain ground."
            )
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise DataError(f"{self.folder} has {len(paths)} files for slide {id!r}: {names}. Keep one.")
        return paths[0]

    def annotation(self, id: str) -> Path | None:
        """The annotation of a slide: in the folder of annotations, or else beside the slide."""
        beside = [path.parent for path in self.slides.get(slide_id(id), [])]
        return find_annotation(slide_id(id), *(beside if self.annotations is None else [self.annotations]))
