"""Fig. 1: a bag's features are embedded, refined by sparse coding, and aggregated. Building, saving and loading models."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil import aggregators
from scmil.aggregators import Embedding, Prediction
from scmil.aggregators.heads import as_logits
from scmil.errors import BagError, ModelFileError, OptionError, ScmilError, ShapeError
from scmil.fused import in_transform
from scmil.released import ReleasedSparseCoding
from scmil.shapes import Float
from scmil.sparse_coding import SparseCoding

FORMAT = "scmil-model-1"


class MILModel(nn.Module):
    """`aggregate(refine(embed(x)))`: refine is `SparseCoding`, or `nn.Identity` for "w/o SC".

    >>> from scmil.aggregators.dsmil import DSMIL
    >>> model = MILModel(nn.Identity(), SparseCoding(512), DSMIL(256, classes=2))
    >>> model(torch.randn(7, 512)).logits.shape
    torch.Size([2])
    """

    def __init__(self, embed: nn.Module, refine: nn.Module, aggregate: nn.Module, dim: int | None = None) -> None:
        super().__init__()
        self.embed, self.refine, self.aggregate = embed, refine, aggregate
        self.dim = dim
        self.recipe: dict[str, Any] | None = None  # what `build_model` was asked for; a model that has it can be saved

    def forward(self, x: Float[Tensor, "n p"]) -> Prediction:
        check_bag(x, self.dim)
        prediction: Prediction = self.aggregate(self.refine(self.embed(x)))
        return prediction

    def loss(self, prediction: Prediction, label: Tensor | int) -> Tensor:
        """Cross-entropy of the bag and of its auxiliary logits, with the weights that the aggregator declares.

        >>> model = build_model(8, 2, "dsmil", seed=0)
        >>> model.loss(model(torch.ones(3, 8)), 1).shape
        torch.Size([])
        """
        target = torch.as_tensor(label, device=prediction.logits.device)
        bag_weight, auxiliary_weight = getattr(self.aggregate, "loss_weights", (1.0, 0.0))
        loss = bag_weight * F.cross_entropy(prediction.logits, target)
        if prediction.auxiliary:
            further = torch.stack(prediction.auxiliary)
            loss = loss + auxiliary_weight * F.cross_entropy(further, target.expand(len(further)))
        return loss


def check_bag(x: Tensor, dim: int | None = None) -> None:
    """Refuse what is not a bag: no matrix, no instances, another dimension, NaN or infinite features.

    >>> check_bag(torch.empty(0, 512))
    Traceback (most recent call last):
    ...
    scmil.errors.BagError: the bag is empty: it has no instances, and a model needs at least one.
    """
    if x.ndim != 2:
        raise ShapeError(f"a bag is a matrix (instances, features), and this has the shape {tuple(x.shape)}.")
    if len(x) == 0:
        raise BagError("the bag is empty: it has no instances, and a model needs at least one.")
    if dim is not None and x.shape[1] != dim:
        raise ShapeError(f"the bag has {x.shape[1]}-dimensional features, but this model was built for {dim}.")
    if torch.compiler.is_compiling() or in_transform():
        return  # values cannot be looked at while torch traces or maps
    if not torch.isfinite(x.detach().sum()) and not torch.isfinite(x).all():  # one sum in the ordinary case
        bad = (~torch.isfinite(x)).any(1).nonzero().flatten()
        raise BagError(
            f"{len(bad)} of the bag's {len(x)} instances have NaN or infinite features; the first is number {int(bad[0])}."
        )


class LinearRefine(nn.Sequential):
    """The control for every claim about sparse coding: a plain linear layer with ReLU, of the same width, on the same input.

    Where sparse coding normalises its input, so does the control.
    """

    def __init__(self, dim: int, atoms: int = 256, normalise: bool = True) -> None:
        first: nn.Module = nn.LayerNorm(dim, elementwise_affine=False) if normalise else nn.Identity()
        super().__init__(first, nn.Linear(dim, atoms), nn.ReLU())
        self.dim, self.atoms = dim, atoms


REFINEMENTS: dict[str, Callable[..., nn.Module]] = {
    "sparse-coding": SparseCoding,
    "linear": LinearRefine,
    "released": ReleasedSparseCoding,
}


def build_model(
    dim: int,
    classes: int,
    aggregator: str | Mapping[str, Any] = "abmil-gated",
    sparse_coding: bool | Mapping[str, Any] | None = None,
    *,
    refine: str | None = None,
    embed: Sequence[int] | Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> MILModel:
    """Compose a model by names.

    `aggregator` is a name, or a mapping with its options: `{"name": "abmil", "hidden": 64}`. `sparse_coding` is true, or a
    mapping with the layer's options. `refine` puts something else in its place, with the same options: `"linear"` is the
    capacity control, `"released"` the authors' code. `embed` gives the widths of the embedding network, where the
    aggregator's own is not wanted, or the fields of an `Embedding`: `{"widths": [512], "bias": False}`. In front of a
    cosine dictionary, the aggregator's own embedding takes the largest square below its width (512 -> 484), as the paper's
    Table III does.

    >>> model = build_model(1024, 2, "abmil-gated", sparse_coding={"atoms": 256, "layers": 5}, seed=0)
    >>> model.refine
    SparseCoding(dim=484, atoms=256, layers=5, sparsity='relative')
    >>> build_model(1024, 2, "abml")
    Traceback (most recent call last):
    ...
    scmil.errors.UnknownNameError: unknown aggregator 'abml'. Did you mean 'abmil'? Known: ...
    """
    asked = dict(
        dim=dim, classes=classes, aggregator=aggregator, sparse_coding=sparse_coding, refine=refine, embed=embed
    )
    if classes < 2:
        raise OptionError(f"classes = {classes}: a model tells at least two classes apart.")
    own = {"name": aggregator} if isinstance(aggregator, str) else dict(aggregator)
    entry = aggregators.entry(name := own.pop("name"))
    options = dict(sparse_coding) if isinstance(sparse_coding, Mapping) else {}
    refine = refine or ("sparse-coding" if sparse_coding or isinstance(sparse_coding, Mapping) else None)
    if refine is not None and refine not in REFINEMENTS:
        raise OptionError(f"refine = {refine!r}. Known: {', '.join(REFINEMENTS)}.")
    embedding: Embedding = getattr(entry.factory, "embedding", Embedding())
    if embed is not None:
        given = dict(embed) if isinstance(embed, Mapping) else {"widths": embed}
        embedding = Embedding(**{**given, "widths": tuple(given.get("widths", ()))})
    elif embedding.widths and refine == "sparse-coding" and options.get("dictionary", "dct") == "dct":
        *widths, last = embedding.widths
        embedding = replace(embedding, widths=(*widths, math.isqrt(last) ** 2))
    with _seeded(seed):
        width = embedding.widths[-1] if embedding.widths else dim
        front = embedding.build(dim)
        middle = _refinement(refine, width, options)
        model = MILModel(front, middle, aggregators.build(name, getattr(middle, "atoms", width), classes, **own), dim)
    model.recipe = asked
    return model


def _refinement(refine: str | None, dim: int, options: Mapping[str, Any]) -> nn.Module:
    if refine is None:
        return nn.Identity()
    if refine == "linear":
        options = {key: value for key, value in options.items() if key in ("atoms", "normalise")}
    try:
        return REFINEMENTS[refine](dim, **options)
    except TypeError as error:
        raise OptionError(f"sparse_coding: {error}.") from None


def _seeded(seed: int | None) -> Any:
    """Draw the initial weights from a seed without touching torch's global generator; no seed, no change."""
    if seed is None:
        return nullcontext()
    fork = torch.random.fork_rng(devices=[])

    class Seeded:
        def __enter__(self) -> None:
            fork.__enter__()
            torch.manual_seed(seed)

        def __exit__(self, *error: Any) -> None:
            fork.__exit__(*error)

    return Seeded()


# ------------------------------------------------------------------------------------------------------ plug and play


def plug_into(
    module: nn.Module,
    dim: int,
    atoms: int = 256,
    *,
    call: Mapping[str, Any] | None = None,
    attention: str = "softmax",
    **sparse_coding: Any,
) -> MILModel:
    """Put sparse coding in front of somebody else's aggregator, built for embeddings of `atoms` dimensions.

    The module maps `(n, d)` or `(1, n, d)` to logits, or to logits and attention; which of the two is found out with two
    small bags. `call` holds further arguments for its forward, such as `{"return_att": True}`. One logit stands for two
    classes. The attention that it returns may be scores before the softmax (`attention="softmax"`) or weights that already
    sum to one (`attention="weights"`).

    >>> class Mean(nn.Module):
    ...     def __init__(self): super().__init__(); self.head = nn.Linear(256, 3)
    ...     def forward(self, bags): return self.head(bags.mean(1))
    >>> plug_into(Mean(), dim=512)(torch.randn(9, 512)).logits.shape
    torch.Size([3])
    """
    if attention not in ("softmax", "weights"):
        raise OptionError(f"attention = {attention!r}. Known: softmax, weights.")
    outside = Outside(module, atoms, attention, dict(call or {}))
    return MILModel(nn.Identity(), SparseCoding(dim, atoms, **sparse_coding), outside, dim)


class Outside(nn.Module):
    """Speaks our contract for a module that was written for another one."""

    permutation_invariant = False  # not known
    embedding = Embedding()

    def __init__(self, module: nn.Module, dim: int, attention: str, call: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.attention, self.call = module, attention, call
        self.batched = self._takes_a_batch(dim)

    def _takes_a_batch(self, dim: int) -> bool:
        """Try both forms on bags of two and three instances: the logits are one row, whatever the size of the bag."""
        weight = next(self.module.parameters(), torch.empty(0))
        training, refusals = self.module.training, []
        self.module.eval()
        try:
            for batched in (True, False):
                bags = [torch.ones(n, dim, dtype=weight.dtype, device=weight.device) for n in (2, 3)]
                shape = f"({'1, ' if batched else ''}n, {dim})"
                try:
                    with torch.no_grad():
                        two, three = (
                            _logits_of(self.module(bag[None] if batched else bag, **self.call)).shape for bag in bags
                        )
                except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
                    refusals.append(f"{shape} raised {type(error).__name__}: {str(error).splitlines()[0]}")
                    continue
                if two == three and (len(two) <= 1 or (len(two) == 2 and two[0] == 1)):
                    return batched
                refusals.append(f"{shape} gave logits {tuple(two)} for two instances and {tuple(three)} for three")
        finally:
            self.module.train(training)
        raise OptionError(
            f"{type(self.module).__name__} gives no logits for a bag. {'; '.join(refusals)}. "
            f"Build it for {dim}-dimensional embeddings, the number of atoms, and let it pool the instances."
        )

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        said = self.module(h[None] if self.batched else h, **self.call)
        logits = as_logits(_logits_of(said).reshape(-1))
        scores = said[1] if isinstance(said, tuple | list) and len(said) > 1 else None
        if not isinstance(scores, Tensor) or scores.numel() % len(h):
            return Prediction(logits, h.new_full((len(h),), math.nan))  # not told; NaN cannot be mistaken for an answer
        axis = max(i for i, size in enumerate(scores.shape) if size == len(h))
        scores = scores.movedim(axis, -1).reshape(-1, len(h))  # one row a head
        weights = torch.softmax(scores, dim=1) if self.attention == "softmax" else scores
        return Prediction(logits, weights.mean(0))


def _logits_of(said: Any) -> Tensor:
    logits = said[0] if isinstance(said, tuple | list) else said
    if not isinstance(logits, Tensor):
        raise TypeError(f"returned {type(logits).__name__}, not a tensor of logits")
    return logits


# ------------------------------------------------------------------------------------------------------ save and load


def save_model(model: MILModel, folder: str | os.PathLike[str]) -> Path:
    """Write `model.safetensors` and `model.json` into a folder; both appear whole or not at all.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> x, model = torch.ones(4, 16), build_model(16, 2, "abmil", embed=[8], seed=0)
    >>> bool((load_model(save_model(model, folder))(x).logits == model(x).logits).all())
    True
    """
    from safetensors.torch import save

    if model.recipe is None:
        raise ModelFileError(
            "only a model of build_model can be saved: another's parts cannot be told from its weights."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()})
    page = {
        "format": FORMAT,
        "model": model.recipe,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    text = json.dumps(page, indent=2, default=_plain) + "\n"
    _write(folder / "model.safetensors", weights)  # the page that names its hash comes last: a torn pair is noticed
    _write(folder / "model.json", text.encode())
    return folder


def load_model(folder: str | os.PathLike[str]) -> MILModel:
    """Read a model back, bit for bit, without running anything that the files say."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = Path(folder)
    page = _read_page(folder / "model.json")
    path = folder / "model.safetensors"
    try:
        weights = path.read_bytes()
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error.strerror}). A model is two files; was one left behind?"
        ) from None
    if hashlib.sha256(weights).hexdigest() != page["sha256"]:
        raise ModelFileError(
            f"{path}: not the file that model.json names (its sha256 differs): damaged, cut short, or replaced."
        )
    try:
        tensors = load(weights)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"{path}: not a safetensors file ({error}).") from None
    try:
        model = build_model(**page["model"])
    except (ScmilError, TypeError, ValueError, RuntimeError) as error:
        raise ModelFileError(f"{folder / 'model.json'}: no model can be built from it ({error})") from None
    model.to(getattr(torch, page["dtype"]))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    met = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != met:
        different = sorted(name for name in expected.keys() | met.keys() if expected.get(name) != met.get(name))
        raise ModelFileError(
            f"{path}: its tensors are not those of the model in model.json; different: {', '.join(different)}."
        )
    model.load_state_dict(tensors)
    return model


def _read_page(path: Path) -> dict[str, Any]:
    try:
        page = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror}). Is the folder a model of scmil?") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON ({error}).") from None
    if not isinstance(page, dict) or page.get("format") != FORMAT:
        met = page.get("format") if isinstance(page, dict) else type(page).__name__
        raise ModelFileError(f"{path}: format {met!r}, and this version reads {FORMAT!r}.")
    wrong = [
        key for key, kind in (("model", dict), ("sha256", str), ("dtype", str)) if not isinstance(page.get(key), kind)
    ]
    if wrong or page["dtype"] not in ("float32", "float64", "float16", "bfloat16"):
        raise ModelFileError(f"{path}: incomplete or wrong: {', '.join(wrong) or 'dtype'}.")
    return page


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise ModelFileError(f"{value!r} cannot be written to model.json: options of a model to be saved are plain values.")


def _write(path: Path, content: bytes) -> None:
    """Write under a temporary name and rename, so that no half file ever has the final name."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
