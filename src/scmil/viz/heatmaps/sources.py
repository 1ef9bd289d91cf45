"""Find the slides and their annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scmil.bags.slide_ids import slide_id
from scmil.encoding.cohort import find_cohort
from scmil.errors import DataError, OptionError
from scmil.slides.annotations.lookup import find_annotation


@dataclass(frozen=True)
class Sources:
    """The files of slides by slide id, and the folder of annotations, if there is one."""

    slides: Mapping[
        str, list[Path]
    ]  # several files for one bag_id are an error when the slide is drawn
    folder: Path | None  # None without slides
    annotations: Path | None

    @classmethod
    def of(cls, slides: str | Path | None, annotations: str | Path | None, out: Path) -> Sources:
        """Find the slides; sheets in `out`, which may be in the same folder, are not slides."""
        folder, drawn = (None if path is None else Path(path) for path in (slides, annotations))
        if out.resolve() in [path.resolve() for path in (folder, drawn) if path is not None]:
            raise OptionError(
                f"{out} contains slides or annotations. Choose another folder with --out, so that "
                "no file is replaced."
            )
        if drawn is not None and not drawn.is_dir():
            raise DataError(
                f"{drawn} is not a folder. Give the folder with <slide>.xml or <slide>.geojson "
                "files."
            )
        found: dict[str, list[Path]] = {}
        for source in find_cohort(folder) if folder is not None else ():
            if out.resolve() not in source.path.resolve().parents:
                found.setdefault(slide_id(source.id), []).append(source.path)
        return cls(found, folder, drawn)

    def file(self, bag_id: str) -> str:
        """The file of a slide, for the failure log."""
        return ", ".join(map(str, self.slides.get(slide_id(bag_id), [])))

    def slide(self, bag_id: str) -> Path | None:
        """The file of a slide; None without slides."""
        if self.folder is None:
            return None
        paths = self.slides.get(slide_id(bag_id), [])
        if not paths:
            raise DataError(
                f"{self.folder} has no slide {bag_id!r}. Add its file, or omit --slides to draw on "
                "a plain background."
            )
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise DataError(
                f"{self.folder} has {len(paths)} files for slide {bag_id!r}: {names}. Keep only "
                "one."
            )
        return paths[0]

    def annotation(self, bag_id: str) -> Path | None:
        """The annotation of a slide, in the folder of annotations or beside the slide."""
        beside = [path.parent for path in self.slides.get(slide_id(bag_id), [])]
        return find_annotation(
            slide_id(bag_id), *(beside if self.annotations is None else [self.annotations])
        )
