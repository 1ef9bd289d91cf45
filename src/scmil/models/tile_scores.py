"""What a model says of every tile of a slide: attention, probabilities, lambda, codes; kept as one file a slide.

A folder of scores, by default `maps/` in the folder of the model, is what pictures, localisation, atlas and viewer read:

    maps.json             the model's hash and parts, its classes and threshold
    scores/<slide>.npz    the arrays of a `Scores`; the codes as sparse rows
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.models.aggregators.abmil import ABMIL
from scmil.models.aggregators.pooling import Pooling
from scmil.bags.bag import Bag
from scmil.models.streaming import BLOCK_ROWS, predict_bag
from scmil.errors import DataError, OptionError
from scmil.core.files import write_atomically
from scmil.core.safe_io import DAMAGE, npz_arrays
from scmil.limits import PIXELS, bounded, read_json
from scmil.models.model import MILModel
from scmil.sparse_coding.released import ReleasedSparseCoding
from scmil.sparse_coding.layer import SparseCoding
from scmil.core.jobs.work import safe_name

FORMAT = "scmil-maps-1"
PAGE, FOLDER = "maps.json", "scores"
ALONE = 512  # bags of one instance at a time
Numbers = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Codes:
    """The sparse codes of n tiles over `atoms` atoms: row i has `values[starts[i]:starts[i + 1]]` at those `columns`.

    >>> codes = Codes.of(np.array([[0, 2.0, 0], [0, 0, 0], [1.0, 0, -3.0]]))
    >>> codes.column(2), codes.row(2), codes.density()
    (array([ 0.,  0., -3.], dtype=float32), (array([0, 2]), array([ 1., -3.], dtype=float32)),
     array([0.33333333, 0.        , 0.66666667]))
    """

    values: NDArray[np.float16]
    columns: NDArray[np.uint16]
    starts: NDArray[np.int64]
    atoms: int

    @classmethod
    def of(cls, dense: NDArray[Any]) -> Codes:
        """Keep what is not zero; half precision is enough to look at."""
        kept = dense.astype(np.float16)
        rows, columns = kept.nonzero()
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(kept)))]).astype(np.int64)
        return cls(kept[rows, columns], columns.astype(np.uint16), starts, dense.shape[1])

    @classmethod
    def stack(cls, parts: list[Codes]) -> Codes:
        """One after another."""
        offsets = np.cumsum([0, *(len(part.values) for part in parts)])
        starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets)]
        values, columns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "columns"))
        return cls(values, columns, np.concatenate([*starts, offsets[-1:]]), parts[0].atoms)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, tile: int) -> tuple[NDArray[np.int64], Numbers]:
        """The atoms that a tile uses, and how strongly."""
        own = slice(self.starts[tile], self.starts[tile + 1])
        return self.columns[own].astype(np.int64), self.values[own].astype(np.float32)

    def column(self, atom: int) -> Numbers:
        """How strongly each tile uses an atom."""
        found = np.zeros(len(self), np.float32)
        uses = self.columns == atom
        found[self._rows()[uses]] = self.values[uses]
        return found

    def dense(self) -> Numbers:
        """All codes (n, atoms)."""
        found = np.zeros((len(self), self.atoms), np.float32)
        found[self._rows(), self.columns] = self.values
        return found

    def density(self) -> NDArray[np.float64]:
        """The share of atoms that each tile uses."""
        return np.diff(self.starts) / self.atoms

    def _rows(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


@dataclass(frozen=True, eq=False)
class Scores:
    """What a model says of the tiles of one slide; `of` gives any of it by name, see `kinds`."""

    id: str
    xy: NDArray[np.int64]  # (n, 2) top-left corners, level-0 pixels
    side: float  # a tile's edge, in level-0 pixels
    slide_size: tuple[int, int] | None
    slide_mpp: float | None
    label: int | None
    patient: str | None
    classes: tuple[str, ...]
    probabilities: NDArray[np.float64]  # (c,) of the slide
    threshold: float
    attention: Numbers  # (n,), sums to one
    instance: Numbers  # (n, c): what the model says of a bag that holds this tile alone
    lam: Numbers | None = None
    codes: Codes | None = None
    slide_digest: str | None = None  # of the slide that the bag was encoded from, see `scmil.slides.slide_digest`
    made_from: str | None = None  # a digest of the model, the bag and its label; None in files of earlier versions

    def __len__(self) -> int:
        return len(self.xy)

    def kinds(self) -> list[str]:
        """The names of all scores.

        >>> scores = score_bag(_small_model(), _small_bag(), ("normal", "tumour"))
        >>> scores.kinds()[:6], len(scores.kinds())
        (['attention', 'ratio', 'probability:normal', 'probability:tumour', 'lambda', 'sparsity'], 14)
        """
        sparse = ["lambda"] * (self.lam is not None)
        if self.codes is not None:
            sparse += ["sparsity", *(f"atom:{atom}" for atom in range(self.codes.atoms))]
        return ["attention", "ratio", *(f"probability:{name}" for name in self.classes), *sparse]

    def of(self, kind: str) -> NDArray[np.float64]:
        """One number a tile.

        `attention` sums to one; `ratio` is attention times the number of tiles, so 1 is the average and slides can be
        compared; `probability:CLASS` is what the model says of a bag that holds this tile alone, `probability` that of the
        last class; `lambda`, `sparsity` (the share of atoms that are zero) and `atom:K` are those of sparse coding.

        >>> scores = score_bag(_small_model(), _small_bag())
        >>> round(float(scores.of("attention").sum()), 5), round(float(scores.of("ratio").mean()), 5)
        (1.0, 1.0)
        """
        name, _, detail = kind.partition(":")
        if name in ("attention", "ratio") and not detail:
            return self.attention.astype(np.float64) * (len(self) if name == "ratio" else 1)
        if name == "probability" and (not detail or detail in self.classes):
            return self.instance[:, self.classes.index(detail) if detail else -1].astype(np.float64)
        if kind == "lambda" and self.lam is not None:
            return self.lam.astype(np.float64)
        if kind == "sparsity" and self.codes is not None:
            return 1 - self.codes.density()
        if name == "atom" and self.codes is not None and detail.isdecimal() and int(detail) < self.codes.atoms:
            return self.codes.column(int(detail)).astype(np.float64)
        raise OptionError(self._unknown(kind))

    def _unknown(self, kind: str) -> str:
        if kind.partition(":")[0] in ("lambda", "sparsity", "atom") and self.codes is None:
            return f"there is no {kind!r}: the model has no sparse coding. Train one with --sc."
        atoms = "" if self.codes is None else f", lambda, sparsity, atom:0 to atom:{self.codes.atoms - 1}"
        known = ", ".join(f"probability:{name}" for name in self.classes)
        return f"unknown score {kind!r}. Known: attention, ratio, probability, {known}{atoms}."

    @property
    def predicted(self) -> int:
        """The class that the model says."""
        from scmil.stats.metrics import decide

        return int(decide(self.probabilities[None], self.threshold)[0])

    @property
    def effective_tiles(self) -> float:
        """How many tiles share the attention: the exponential of its entropy, from 1 (one tile has all) to n.

        >>> 1 <= score_bag(_small_model(), _small_bag()).effective_tiles <= 9.0001
        True
        """
        attention = self.attention.astype(np.float64)
        shares = attention[attention > 0]
        return float(np.exp(-(shares * np.log(shares)).sum()))


# ------------------------------------------------------------------------------------------------------------ scoring


@torch.no_grad()
def score_bag(
    model: MILModel,
    bag: Bag,
    classes: tuple[str, ...] | None = None,
    threshold: float = 0.5,
    slide_mpp: float | None = None,
) -> Scores:
    """Score every tile of a bag, block by block; the bag needs coordinates, and the model's scaling must be done already.

    >>> scores = score_bag(_small_model(), _small_bag())
    >>> scores.id, len(scores), scores.instance.shape, scores.codes.atoms
    ('slide', 9, (9, 2), 8)
    """
    if bag.xy is None:
        raise DataError(
            f"bag {bag.id!r} has no coordinates, so its tiles have no place on the slide. Encode it with scmil encode, or "
            "import features together with their coordinates."
        )
    model.eval()
    prediction = predict_bag(model, bag.features)
    like = next(model.parameters())
    instance, lam, codes = [], [], []
    for start in range(0, len(bag.features), BLOCK_ROWS):
        embedded = model.embed(bag.features[start : start + BLOCK_ROWS].to(like.device, like.dtype))
        h = model.refine(embedded)
        instance.append(alone(model.aggregate, h).softmax(-1).cpu())
        if isinstance(model.refine, SparseCoding):
            lam.append(model.refine.sparsity(embedded)[:, 0].cpu())
        elif isinstance(model.refine, ReleasedSparseCoding):
            lam.append(model.refine.network(embedded)[:, 0].cpu())
        if lam:
            codes.append(Codes.of(h.float().cpu().numpy()))
    said = _provenance(bag)
    size, mpp = said.get("slide_size"), said.get("slide_mpp")
    xy = bag.xy.numpy().astype(np.int64)
    return Scores(
        id=bag.id,
        xy=xy,
        side=float(said.get("side_level0") or _spacing(bag.id, xy)),
        slide_size=None if size is None else (int(size[0]), int(size[1])),
        slide_mpp=slide_mpp if mpp is None else float(mpp),
        label=bag.label,
        patient=bag.patient,
        classes=classes or tuple(map(str, range(len(prediction.logits)))),
        probabilities=prediction.logits.softmax(-1).double().cpu().numpy(),
        threshold=threshold,
        attention=prediction.attention.float().cpu().numpy(),
        instance=torch.cat(instance).float().numpy(),
        lam=torch.cat(lam).float().numpy() if lam else None,
        codes=Codes.stack(codes) if codes else None,
        slide_digest=bag.provenance.get("slide_digest"),
    )


def _provenance(bag: Bag) -> dict[str, Any]:
    """The numbers of a bag's provenance that scores take over; those that are not known are left out."""
    told = {key: bag.provenance.get(key) for key in ("side_level0", "slide_mpp", "slide_size")}
    for key, value in told.items():
        for one in value if isinstance(value, (list, tuple)) else [] if value is None else [value]:
            bounded(key, one, f"bag {bag.id!r}")
    if isinstance(told["slide_size"], (list, tuple)) and len(told["slide_size"]) != 2:
        raise DataError(f"bag {bag.id!r}: slide_size = {told['slide_size']}: width and height are needed.")
    return {key: value for key, value in told.items() if value is not None}


def alone(aggregate: torch.nn.Module, h: Tensor) -> Tensor:
    """The logits (n, c) that an aggregator gives to bags of one instance each: what an instance says by itself.

    >>> from scmil.models import aggregators
    >>> alone(aggregators.build("dsmil", 8, classes=3), torch.randn(5, 8)).shape
    torch.Size([5, 3])
    """
    if type(aggregate) in (ABMIL, Pooling):  # of one instance the weighted mean, and the maximum, are the instance
        return aggregate.classifier(h)  # type: ignore[operator]
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "There is a performance drop", UserWarning
        )  # torch's own attention, under vmap
        try:
            return torch.vmap(lambda row: aggregate(row[None]).logits, randomness="different", chunk_size=ALONE)(h)
        except RuntimeError:  # somebody's module that torch cannot map: the same numbers, one by one
            return torch.stack([aggregate(row[None]).logits for row in h])


def _spacing(id: str, xy: NDArray[np.int64]) -> float:
    """The edge of tiles whose file does not tell it: the smallest step between two of them."""
    steps = [np.diff(np.unique(column)) for column in xy.T]
    steps = [step for step in steps if len(step)]
    if not steps:
        raise DataError(f"bag {id!r} does not say how large its tiles are. Encode it with scmil encode.")
    return float(min(step.min() for step in steps))


# -------------------------------------------------------------------------------------------------------------- files


def scores_path(folder: str | Path, id: str) -> Path:
    """Where the scores of a slide are kept."""
    return Path(folder) / FOLDER / f"{safe_name(id)}.npz"


def write_scores(scores: Scores, folder: str | Path) -> Path:
    """Write the scores of one slide; the file appears whole or not at all.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> read_scores(write_scores(score_bag(_small_model(), _small_bag()), folder)).codes.dense().shape
    (9, 8)
    """
    page = {
        "id": scores.id, "side": scores.side, "slide_size": scores.slide_size, "slide_mpp": scores.slide_mpp,
        "label": scores.label, "patient": scores.patient, "classes": scores.classes, "threshold": scores.threshold,
        "slide_digest": scores.slide_digest, "made_from": scores.made_from,
        "atoms": None if scores.codes is None else scores.codes.atoms,
    }  # fmt: skip
    arrays: dict[str, Any] = {
        "page": np.frombuffer(json.dumps(page).encode(), np.uint8),
        **{name: getattr(scores, name) for name in ("xy", "probabilities", "attention", "instance")},
    }
    if scores.lam is not None:
        arrays["lam"] = scores.lam
    if scores.codes is not None:
        arrays |= {f"code_{name}": getattr(scores.codes, name) for name in ("values", "columns", "starts")}
    content = io.BytesIO()
    np.savez(content, **arrays)
    path = scores_path(folder, scores.id)
    write_atomically(path, content.getbuffer())
    return path


def read_scores(path: str | Path) -> Scores:
    """Read the scores of one slide."""
    try:
        arrays: dict[str, Any] = npz_arrays(Path(path))
        page = json.loads(arrays.pop("page").tobytes())
        parts = {name: arrays.pop(f"code_{name}") for name in ("values", "columns", "starts") if page["atoms"]}
        codes = Codes(**parts, atoms=page["atoms"]) if parts else None
        del page["atoms"]
        size = None if page["slide_size"] is None else tuple(page["slide_size"])
        scores = Scores(**{**page, "classes": tuple(page["classes"]), "slide_size": size}, **arrays, codes=codes)
        _check(scores)
        return scores
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. Make it: scmil heatmap MODEL BAGS") from None
    except DAMAGE as error:
        raise DataError(f"{path} is damaged, or no file of scores ({error}). Delete it, and make it again.") from None


def _check(scores: Scores) -> None:
    n, c = len(scores.xy), len(scores.classes)
    bounded("side_level0", scores.side, "side")
    bounded("threshold", scores.threshold, "threshold")
    if scores.slide_mpp is not None:
        bounded("slide_mpp", scores.slide_mpp, "page")
    for length in scores.slide_size or ():
        bounded("slide_size", length, "page")
    if scores.label is not None and scores.label not in range(c):
        raise ValueError(f"label {scores.label!r} of {c} classes")
    if scores.xy.dtype.kind not in "iu" or (n and max(-int(scores.xy.min()), int(scores.xy.max())) > PIXELS.high):
        raise ValueError("coordinates that are not pixels of a slide")
    for name in ("probabilities", "attention", "instance"):
        if getattr(scores, name).dtype.kind != "f":
            raise ValueError(f"{name} of type {getattr(scores, name).dtype}")
    shapes = {"xy": (n, 2), "probabilities": (c,), "attention": (n,), "instance": (n, c), "lam": (n,)}
    for name, expected in shapes.items():
        array = getattr(scores, name)
        if array is not None and array.shape != expected:
            raise ValueError(f"{name} has the shape {array.shape} and not {expected}")
    if scores.codes is None:
        return
    bounded("atoms", scores.codes.atoms, "page")
    values, columns, starts = scores.codes.values, scores.codes.columns, scores.codes.starts
    whole = len(starts) == n + 1 and starts[0] == 0 and starts[-1] == len(values) == len(columns)
    if not whole or (np.diff(starts) < 0).any() or (len(columns) and columns.max() >= scores.codes.atoms):
        raise ValueError("the codes do not fit together")


def _is_line(line: Any, classes: int) -> bool:
    """Whether what `maps.json` says of a slide can be true."""
    chances, label = line["probabilities"], line["label"]
    return (
        type(line["predicted"]) is int
        and line["predicted"] in range(classes)
        and (label is None or (type(label) is int and label in range(classes)))
        and len(chances) == classes
        and all(isinstance(chance, int | float) and 0 <= chance <= 1 for chance in chances)
        and 0 <= line["effective_tiles"] < float("inf")
    )


class ScoreSet(Mapping[str, Scores]):
    """The scores in a folder, by slide; a file is read when it is asked for. `page` is what `maps.json` says.

    With `only`, those of these slides.
    """

    def __init__(self, folder: str | Path, only: Collection[str] | None = None) -> None:
        self.folder = Path(folder)
        try:
            self.page: dict[str, Any] = read_json(self.folder / PAGE)
            classes = len(self.page["classes"])
            known = self.page["format"] == FORMAT and isinstance(self.page.get("split") or {}, dict)
            known = known and all(_is_line(line, classes) for line in self.page["slides"].values())
        except (OSError, AttributeError, KeyError, TypeError, ValueError):
            known = False
        if not known:
            raise DataError(f"{self.folder} has no scores that this version reads. Make them: scmil heatmap MODEL BAGS")
        if only is not None:
            self.page["slides"] = {id: line for id, line in self.page["slides"].items() if id in only}

    def __getitem__(self, id: str) -> Scores:
        if id not in self.page["slides"]:
            raise KeyError(id)
        path = scores_path(self.folder, id)
        scores = read_scores(path)
        if (scores.id, scores.made_from) != (id, self.page["slides"][id].get("made_from")):
            raise DataError(
                f"{path} has scores of slide {scores.id!r} that were not made with the others of {self.folder}. Delete "
                "it, and make it again: scmil heatmap MODEL BAGS"
            )
        return scores

    def __contains__(self, id: object) -> bool:
        return id in self.page["slides"]

    def __iter__(self) -> Any:
        return iter(self.page["slides"])

    def __len__(self) -> int:
        return len(self.page["slides"])


def open_scores(folder: str | Path, only: Collection[str] | None = None) -> ScoreSet:
    """The scores of a folder that `score_folder` has written; `maps/` of a model's folder will do as the folder's name."""
    folder = Path(folder)
    return ScoreSet(folder / "maps" if (folder / "maps" / PAGE).is_file() else folder, only)


def _small_model() -> MILModel:
    """For the examples."""
    from scmil.models.model import build_model

    return build_model(16, 2, "abmil-gated", sparse_coding={"atoms": 8}, embed=[16], seed=0)


def _small_bag() -> Bag:
    places = [(256 * (i % 3), 256 * (i // 3)) for i in range(9)]
    features = torch.randn(9, 16, generator=torch.Generator().manual_seed(0))
    return Bag("slide", features, label=1, xy=torch.tensor(places))
