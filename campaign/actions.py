"""What users do: commands of scmil, and what happens to slides, bags, labels and folders between them.

Each action takes the world and its own random numbers, and returns a line for the log; what it needs is made first.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from commands import Command, noise_like
from tiny import ENCODER, MPP, TILE_PX, filled_up
from world import CLASSES, FOLDERS, PLAN, World, digest, fill, read_rows, replace_file, write_rows

if TYPE_CHECKING:
    from scmil.bags.bag import Bag

AGAIN = 0.6  # how often a command is one that was given before
TILES = ("--size", str(TILE_PX), "--mpp", str(MPP))
TRAIN = ("--epochs", "2", "--patience", "0", "--valid", "0.25", "--test", "0.25", "--device", "cpu")


# ----------------------------------------------------------------------------------------------------------- commands


def encode(world: World, random: Random) -> None:
    """Encode a folder of slides; sometimes with other options than before."""
    if not _again(world, "encode", random):
        world.command(_encode(random.choice(("A", "A", "B")), random.choice(("work1", "work1", "work2")), random))


def _encode(folder: str, work: str, random: Random | None = None) -> Command:
    options = _encoder_options(random) if random else ("--encoder", ENCODER)
    return _encode_words(folder, work, options)


def _encoder_options(random: Random) -> tuple[str, ...]:
    seed = ("--random", random.choice("12")) if random.random() < 0.25 else ()
    dtype = ("--dtype", "float32") if random.random() < 0.25 else ()
    scales = ("--two-scales",) if random.random() < 0.1 else ()
    return ("--encoder", ENCODER, *seed, *dtype, *scales)


def _encode_words(folder: str, work: str, options: tuple[str, ...]) -> Command:
    words = ("encode", f"HOME/{folder}", "--out", f"HOME/{work}", *TILES, *options, "--precision", "float32", "--json")
    return Command("encode", words, (folder,))


def tile(world: World, random: Random) -> None:
    """Tile a folder of slides."""
    folder, work = random.choice(FOLDERS), random.choice(("work1", "work2"))
    words = ("tile", f"HOME/{folder}", "--out", f"HOME/{work}", *TILES, "--json")
    world.command(Command("tile", words, (folder,)))


def encode_tiled(world: World, random: Random) -> str | None:
    """Encode a folder that is tiled already; expected is what its slides give, as they are now."""
    works = [path.parent for path in sorted(world.home.glob("work*/slides.csv"))]
    if not works:
        return encode(world, random)  # type: ignore[func-returns-value]
    work = random.choice(works)
    with (work / "slides.csv").open(newline="") as file:
        folders = {Path(row["path"]).parent for row in csv.DictReader(file)}
    if len(folders) != 1 or not (folder := folders.pop()).is_dir() or folder.parent != world.home:
        return f"{work.name} has slides of several folders"
    options = _encoder_options(random)
    words = ("encode", f"HOME/{work.name}", *options, "--precision", "float32", "--json")
    fresh = _encode_words(folder.name, work.name, options).words
    world.command(Command("encode", words, (folder.name,), fresh_words=fresh))
    return None


def train(world: World, random: Random) -> None:
    """Train a model; into a folder that may have one."""
    if not _again(world, "train", random):
        bags = _bags(world, random)
        kind = random.choice((("mean",), ("abmil",), ("abmil", "--sc"), ("mean", "--sc")))
        words = (
            "train",
            f"HOME/{bags}",
            f"HOME/{_labels(random)}",
            "--out",
            f"HOME/{random.choice(('model1', 'model2'))}",
        )
        seed = ("--seed", random.choice("01"))
        world.command(_train((*words, "--aggregator", *kind, *TRAIN, *seed)))


def _train(words: tuple[str, ...]) -> Command:
    return Command("train", words, tuple(word.removeprefix("HOME/") for word in words[1:3]))


def predict(world: World, random: Random) -> None:
    """Apply a model to bags."""
    if not _again(world, "predict", random):
        model, bags = _model(world, random), _bags(world, random)
        out = f"HOME/predicted{random.choice('12')}.csv"
        words = ("predict", f"HOME/{model}", f"HOME/{bags}", "--out", out, "--json")
        world.command(Command("predict", words, (model, bags), left_out=("maps",)))


def predict_slides(world: World, random: Random) -> None:
    """Apply a model to a slide or a folder of them, by way of a work folder that is kept."""
    if not _again(world, "predict slides", random):
        model, slides = _model(world, random), random.choice(FOLDERS)
        if random.random() < 0.7:
            slides += f"/slide_{random.randint(1, 8):03}.svs"
        out = f"HOME/from_slides{random.choice('12')}.csv"
        words = ("predict", f"HOME/{model}", f"HOME/{slides}", "--work", "HOME/kept", "--out", out, "--json")
        world.command(Command("predict slides", words, (model, slides), left_out=("maps",)))


def compare(world: World, random: Random) -> None:
    """Compare the arms of an aggregator."""
    if not _again(world, "compare", random):
        bags, labels = _bags(world, random), _labels(random)
        words = ("compare", f"HOME/{bags}", f"HOME/{labels}", "--aggregator", "mean", "--folds", "2", "--repeats", "1")
        words += ("--epochs", "2", "--jobs", "1", "--out", "HOME/compared", "--json")
        world.command(Command("compare", words, (bags, labels)))


def run(world: World, random: Random) -> None:
    """Run an experiment, or one of its two cells."""
    plan = world.home / "plan.toml"
    if world.plan is None or random.random() < 0.2 or not (world.home / world.plan[0]).is_dir():
        world.plan = (_bags(world, random), _labels(random), random.choice((2, 3)))
    bags, labels, epochs = world.plan
    plan.write_text(PLAN.format(home=world.home, bags=bags, labels=labels, epochs=epochs))
    full = ("run", "HOME/plan.toml", "--out", "HOME/ran", "--jobs", "1", "--json", *_moved(bags, labels))
    only = ("--only", random.choice(("*mean*", "*abmil*"))) if random.random() < 0.5 else ()
    world.command(Command("run", (*full, *only), ("plan.toml", bags, labels), fresh_words=full))


def _moved(bags: str, labels: str) -> tuple[str, ...]:
    """The paths of a plan, as options: a fresh run has them elsewhere."""
    return ("--set", f"data.dataset=HOME/{bags}", "--set", f"data.labels=HOME/{labels}")


def heatmap(world: World, random: Random) -> None:
    """Draw maps of a score."""
    if not _again(world, "heatmap", random):
        model, bags, folder = _model(world, random), _bags(world, random), random.choice(FOLDERS)
        words = ("heatmap", f"HOME/{model}", f"HOME/{bags}", "--slides", f"HOME/{folder}", "--json")
        score = random.choice(("attention", "attention", "probability"))
        out = ("--score", score) if random.random() < 0.7 else ("--score", score, "--out", "HOME/maps")
        world.command(Command("heatmap", (*words, *out), (model, bags, folder), left_out=("maps",)))


def locate(world: World, random: Random) -> None:
    """Hold scores against outlines."""
    if not _again(world, "locate", random):
        model, bags, folder = _model(world, random), _bags(world, random), random.choice(FOLDERS)
        words = ("locate", f"HOME/{model}", f"HOME/{bags}", "--annotations", f"HOME/{folder}", "--part", "all")
        words += ("--labels", f"HOME/{folder}/labels.csv", "--draws", "5", "--out", "HOME/located", "--json")
        world.command(Command("locate", words, (model, bags, folder), left_out=("maps",)))


def atlas(world: World, random: Random) -> None:
    """Make the atlas of a model with sparse coding."""
    if not _again(world, "atlas", random):
        bags = _bags(world, random)
        if not (models := world.models(sparse=True)):
            words = (
                "train",
                f"HOME/{bags}",
                "HOME/A/labels.csv",
                "--out",
                "HOME/model3",
                "--aggregator",
                "mean",
                "--sc",
            )
            world.command(_train((*words, *TRAIN)))
            models = world.models(sparse=True)
        if models:
            model, folder = random.choice(models), random.choice(FOLDERS)
            words = ("atlas", f"HOME/{model}", f"HOME/{bags}", "--slides", f"HOME/{folder}", "--tiles", "1", "--json")
            world.command(Command("atlas", words, (model, bags, folder), left_out=("maps",)))


def view(world: World, random: Random) -> None:
    """Start the viewer on a port that it had before, and look at it with a browser that was there before."""
    if not _again(world, "view", random):
        model, bags, folder = _model(world, random), _bags(world, random), random.choice(FOLDERS)
        words = ("view", f"HOME/{model}", f"HOME/{folder}", "--bags", f"HOME/{bags}", "--port", "PORT", "--no-open")
        world.command(Command("view", words, (model, bags, folder), left_out=("maps",)))


def paint(world: World, random: Random) -> None:
    """Paint slides into a folder that has slides of these names."""
    words = ("paint", "--out", f"HOME/{random.choice(FOLDERS)}", "--slides", "1", "--side", "1000")
    world.command(Command("paint", words, ()), remember=False)


def _again(world: World, verb: str, random: Random) -> bool:
    """Give a command that was given before, as it was."""
    known = [command for (name, _), command in world.last.items() if name == verb]
    known = [command for command in known if all((world.home / name).exists() for name in command.inputs)]
    if not known or random.random() >= AGAIN:
        return False
    world.command(random.choice(known))
    return True


def _bags(world: World, random: Random) -> str:
    """A folder of bags; the first slides are encoded if there is none."""
    if not world.bag_folders():
        world.command(_encode("A", "work1"))
    folders = world.bag_folders()
    return random.choice(folders) if folders else f"work1/bags/{ENCODER}"


def _model(world: World, random: Random) -> str:
    """A model; one is trained if there is none."""
    if not world.models():
        bags = _bags(world, random)
        words = ("train", f"HOME/{bags}", "HOME/A/labels.csv", "--out", "HOME/model1", "--aggregator", "abmil", *TRAIN)
        world.command(_train(words))
    models = world.models()
    return random.choice(models) if models else "model1"


def _labels(random: Random) -> str:
    return f"{random.choice(('A', 'A', 'B'))}/labels.csv"


# -------------------------------------------------------------------------------------------------------------- files


def replace_slide(world: World, random: Random) -> str:
    """Put another patient's slide under the name of one, of the same size in bytes or not, with its time or not."""
    folder, number = random.choice(("A", "A", "B")), random.randint(1, 8)
    path = world.home / folder / f"slide_{number:03}.svs"
    source = random.choice(sorted(world.pool.glob("*.svs")))
    same_size, keep_time = random.random() < 0.7, random.random() < 0.5
    content = source.read_bytes()
    replace_file(path, filled_up(content) if same_size else content, keep_time)
    if random.random() < 0.5:
        shutil.copyfile(source.with_suffix(".geojson"), path.with_suffix(".geojson"))
    how = f"{'same' if same_size else 'another'} size, {'old' if keep_time else 'new'} time"
    return f"{folder}/{path.name} is now slide {source.stem} of the pool ({how})"


def swap_slide_folders(world: World, random: Random) -> str:
    """Let two folders of slides change names."""
    _swap(world, *FOLDERS)
    return "A and B change names"


def edit_labels(world: World, random: Random) -> str:
    """Change labels of two slides, or make two slides those of one patient."""
    path = world.home / random.choice(FOLDERS) / "labels.csv"
    header, *rows = read_rows(path)
    if random.random() < 0.7:
        chosen = [random.choice([row for row in rows if row[2] == name] or rows) for name in CLASSES]
        for row in chosen:
            row[2] = CLASSES[1 - CLASSES.index(row[2])]
        said = f"other labels for {' and '.join(row[1] for row in chosen)}"
    else:
        one = random.choice(rows)
        other = random.choice([row for row in rows if row[2] == one[2]])
        other[0] = one[0]
        said = f"{one[1]} and {other[1]} are of one patient"
    replace_file(path, b"", keep_time=False)
    write_rows(path, [header, *rows])
    return f"{path.parent.name}/labels.csv: {said}"


def noise_bags(world: World, random: Random) -> str | None:
    """Replace the features of some bags by noise, written by scmil."""
    from scmil.bags.hdf5 import write_bag

    return _edited(
        world, random, lambda path, seed: write_bag(_noise_like(path, path.stem, seed), path), "noise, written by scmil"
    )


def _noise_like(path: Path, id: str, seed: int) -> Bag:
    """A bag of noise with the places and the provenance of another, which is read without scmil: it may be edited."""
    import h5py
    import torch

    from scmil.bags.bag import Bag

    with h5py.File(path, "r") as file:
        features, xy, told = file["features"][()], file["coords"][()], json.loads(file.attrs["provenance"])
    return Bag(id, torch.from_numpy(noise_like(features, seed)), xy=torch.from_numpy(xy), provenance=told)


def edit_bags_in_place(world: World, random: Random) -> str | None:
    """Replace the features of some bags by noise with h5py, in the files that are there."""
    import h5py

    def edit(path: Path, seed: int) -> None:
        with h5py.File(path, "r+") as file:
            file["features"][...] = noise_like(file["features"][()], seed)

    return _edited(world, random, edit, "noise, written in place")


def _edited(world: World, random: Random, edit: object, words: str) -> str | None:
    folders = world.bag_folders()
    if not folders:
        return None
    folder = random.choice(folders)
    bags = sorted((world.home / folder).glob("*.h5"))
    chosen = bags if random.random() < 0.4 else random.sample(bags, min(2, len(bags)))
    for path in chosen:
        edit(path, random.randrange(2**32))  # type: ignore[operator]
        slide = world.slide_of(path)
        if slide and slide.is_file():
            world.edited[path] = (digest(path), digest(slide))
    return f"{len(chosen)} bags of {folder}: {words}"


def delete_bags(world: World, random: Random) -> str | None:
    """Delete one bag, or half of them."""
    folders = world.bag_folders()
    if not folders:
        return None
    folder = random.choice(folders)
    bags = sorted((world.home / folder).glob("*.h5"))
    chosen = random.sample(bags, 1 if random.random() < 0.6 else (len(bags) + 1) // 2)
    for path in chosen:
        path.unlink()
    return f"{len(chosen)} bags of {folder} are deleted"


def add_bag(world: World, random: Random) -> str | None:
    """A bag of a further slide, with a label more often than not."""
    from scmil.bags.hdf5 import write_bag

    folders = world.bag_folders()
    if not folders:
        return None
    folder, name = random.choice(folders), f"slide_{random.randint(9, 12):03}"
    like = random.choice(sorted((world.home / folder).glob("*.h5")))
    write_bag(_noise_like(like, name, random.randrange(2**32)), world.home / folder / f"{name}.h5")
    if random.random() < 0.7:
        for place in FOLDERS:
            rows = read_rows(path := world.home / place / "labels.csv")
            if name not in {row[1] for row in rows}:
                write_rows(path, [*rows, (f"patient_{name}", name, random.choice(CLASSES))])
    return f"{folder}/{name}.h5 is new"


def swap_work(world: World, random: Random) -> str:
    """Let two work folders change names."""
    _swap(world, "work1", "work2")
    return "work1 and work2 change names"


def _swap(world: World, one: str, other: str) -> None:
    place = world.home / "between"
    for source, target in (
        (world.home / one, place), (world.home / other, world.home / one), (place, world.home / other),
    ):  # fmt: skip
        if source.exists():
            source.rename(target)
    world.edited = {
        world.home
        / path.relative_to(world.home).as_posix().replace(one, "\0").replace(other, one).replace("\0", other): kept
        for path, kept in world.edited.items()
    }


def copy_work(world: World, random: Random) -> str | None:
    """Copy a work folder or a model, and put the copy in the place of the original: other times, other inodes."""
    found = sorted(path for name in ("work*", "model*") for path in world.home.glob(name))
    if not found:
        return None
    folder = random.choice(found)
    copy = world.home / "copy"
    shutil.copytree(folder, copy, copy_function=random.choice((shutil.copyfile, shutil.copy2)))
    shutil.rmtree(folder)
    copy.rename(folder)
    return f"{folder.name} is a copy of itself"


def touch(world: World, random: Random) -> str | None:
    """Give the files of a folder a new time."""
    found = [*FOLDERS, *world.bag_folders()]
    folder = random.choice(found)
    for path in sorted((world.home / folder).glob("*")):
        os.utime(path)
    return f"all files of {folder} have a new time"


def remove_output(world: World, random: Random) -> str | None:
    """Delete a folder of results, as one does that is rejected."""
    names = ("model1", "model2", "model3", "compared", "ran", "located", "kept", "maps", "work1", "work2")
    found = [name for name in names if (world.home / name).exists()]
    if not found:
        return None
    shutil.rmtree(world.home / (name := random.choice(found)))
    world.own = {path: content for path, content in world.own.items() if path.is_file()}
    return f"{name} is deleted"


def own_file(world: World, random: Random) -> str:
    """Put a table of one's own where a command writes."""
    name = random.choice(("located/detections/mine.csv", "located/froc.csv", "predicted1.csv", "from_slides1.csv"))
    path = world.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine\n1\n")
    world.own[path] = path.read_bytes()
    return f"{name} is a table of the user"


ACTIONS = {
    "encode": encode, "tile": tile, "encode tiled": encode_tiled, "train": train, "predict": predict,
    "predict slides": predict_slides, "compare": compare, "run": run, "heatmap": heatmap, "locate": locate, "atlas": atlas,
    "view": view, "paint": paint, "replace slide": replace_slide, "swap slide folders": swap_slide_folders,
    "edit labels": edit_labels, "noise": noise_bags, "edit in place": edit_bags_in_place, "delete bags": delete_bags,
    "add bag": add_bag, "swap work": swap_work, "copy": copy_work, "touch": touch, "remove": remove_output,
    "own file": own_file,
}  # fmt: skip
WEIGHTS = {
    "encode": 3, "tile": 0.7, "encode tiled": 1, "train": 3, "predict": 1, "predict slides": 2.5, "compare": 1.5, "run": 2,
    "heatmap": 1.5, "locate": 1, "atlas": 0.7, "view": 2, "paint": 0.2, "replace slide": 4, "swap slide folders": 1,
    "edit labels": 2, "noise": 1.5, "edit in place": 1.5, "delete bags": 1.5, "add bag": 0.7, "swap work": 0.7, "copy": 0.5,
    "touch": 0.5, "remove": 1.5, "own file": 0.5,
}  # fmt: skip
COMMANDS = (
    "train",
    "train",
    "predict slides",
    "compare",
    "run",
    "heatmap",
    "view",
)  # of which the second action is one


def warm_up_words(home: Path, pool: Path) -> Iterator[list[str]]:
    """Each command once, in an order in which they work."""
    fill(home / "A", pool, 0)
    (home / "plan.toml").write_text(
        PLAN.format(home=home, bags=f"work1/bags/{ENCODER}", labels="A/labels.csv", epochs=2)
    )
    bags, model = f"HOME/work1/bags/{ENCODER}", "HOME/model1"
    train = ("train", bags, "HOME/A/labels.csv", "--out", model, "--aggregator", "abmil", "--sc", *TRAIN)
    slide = "HOME/A/slide_001.svs"
    every = (
        _encode("A", "work1").words, train, ("predict", model, slide, "--work", "HOME/kept", "--out", "HOME/p.csv"),
        ("predict", model, bags, "--out", "HOME/q.csv"), ("run", "HOME/plan.toml", "--out", "HOME/ran", "--jobs", "1"),
        ("heatmap", model, bags, "--slides", "HOME/A"), ("atlas", model, bags, "--slides", "HOME/A", "--tiles", "1"),
        ("locate", model, bags, "--annotations", "HOME/A", "--part", "all", "--draws", "5", "--out", "HOME/located"),
        ("compare", bags, "HOME/A/labels.csv", "--aggregator", "mean", "--folds", "2", "--repeats", "1", "--epochs", "2",
         "--jobs", "1", "--out", "HOME/compared"),
    )  # fmt: skip
    for words in every:
        yield [word.replace("HOME", str(home)) for word in words]
