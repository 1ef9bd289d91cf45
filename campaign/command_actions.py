"""Actions that run a command of scmil.

Each takes the world and its own random numbers. If an input is missing, it is made first.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from commands import Command
from tiny import ENCODER, MPP, TILE_PX
from world import FOLDERS, PLAN, World, fill

if TYPE_CHECKING:
    pass


AGAIN = 0.6  # the probability of repeating an earlier command
TILES = ("--size", str(TILE_PX), "--mpp", str(MPP))
TRAIN = ("--epochs", "2", "--patience", "0", "--valid", "0.25", "--test", "0.25", "--device", "cpu")


def encode(world: World, random: Random) -> None:
    """Encode a folder of slides; sometimes with other options than before."""
    if not _repeat(world, "encode", random):
        world.command(
            _encode(
                random.choice(("A", "A", "B")), random.choice(("work1", "work1", "work2")), random
            )
        )


def _encode(folder: str, work: str, random: Random | None = None) -> Command:
    options = _encoder_options(random) if random else ("--encoder", ENCODER)
    return _encode_words(folder, work, options)


def _encoder_options(random: Random) -> tuple[str, ...]:
    seed = ("--random", random.choice("12")) if random.random() < 0.25 else ()
    dtype = ("--dtype", "float32") if random.random() < 0.25 else ()
    scales = ("--two-scales",) if random.random() < 0.1 else ()
    return ("--encoder", ENCODER, *seed, *dtype, *scales)


def _encode_words(folder: str, work: str, options: tuple[str, ...]) -> Command:
    words = (
        "encode",
        f"HOME/{folder}",
        "--out",
        f"HOME/{work}",
        *TILES,
        *options,
        "--precision",
        "float32",
        "--json",
    )
    return Command("encode", words, (folder,))


def tile(world: World, random: Random) -> None:
    """Tile a folder of slides."""
    folder, work = random.choice(FOLDERS), random.choice(("work1", "work2"))
    words = ("tile", f"HOME/{folder}", "--out", f"HOME/{work}", *TILES, "--json")
    world.command(Command("tile", words, (folder,)))


def encode_tiled(world: World, random: Random) -> str | None:
    """Encode a folder that is tiled already; the fresh run starts from its present slides."""
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
    """Train a model into a folder that may already have one."""
    if not _repeat(world, "train", random):
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
    if not _repeat(world, "predict", random):
        model, bags = _model(world, random), _bags(world, random)
        out = f"HOME/predicted{random.choice('12')}.csv"
        words = ("predict", f"HOME/{model}", f"HOME/{bags}", "--out", out, "--json")
        world.command(Command("predict", words, (model, bags), left_out=("maps",)))


def predict_slides(world: World, random: Random) -> None:
    """Apply a model to slides with a work folder that is kept."""
    if not _repeat(world, "predict slides", random):
        model, slides = _model(world, random), random.choice(FOLDERS)
        if random.random() < 0.7:
            slides += f"/slide_{random.randint(1, 8):03}.svs"
        out = f"HOME/from_slides{random.choice('12')}.csv"
        words = (
            "predict",
            f"HOME/{model}",
            f"HOME/{slides}",
            "--work",
            "HOME/kept",
            "--out",
            out,
            "--json",
        )
        world.command(Command("predict slides", words, (model, slides), left_out=("maps",)))


def compare(world: World, random: Random) -> None:
    """Compare an aggregator with and without sparse coding."""
    if not _repeat(world, "compare", random):
        bags, labels = _bags(world, random), _labels(random)
        words: tuple[str, ...] = (
            "compare",
            f"HOME/{bags}",
            f"HOME/{labels}",
            "--aggregator",
            "mean",
            "--folds",
            "2",
            "--repeats",
            "1",
        )
        words += ("--epochs", "2", "--jobs", "1", "--out", "HOME/compared", "--json")
        world.command(Command("compare", words, (bags, labels)))


def run(world: World, random: Random) -> None:
    """Run an experiment or one of its two runs."""
    plan = world.home / "plan.toml"
    if world.plan is None or random.random() < 0.2 or not (world.home / world.plan[0]).is_dir():
        world.plan = (_bags(world, random), _labels(random), random.choice((2, 3)))
    bags, labels, epochs = world.plan
    plan.write_text(PLAN.format(home=world.home, bags=bags, labels=labels, epochs=epochs))
    full = (
        "run",
        "HOME/plan.toml",
        "--out",
        "HOME/ran",
        "--jobs",
        "1",
        "--json",
        *_moved(bags, labels),
    )
    only = ("--only", random.choice(("*mean*", "*abmil*"))) if random.random() < 0.5 else ()
    world.command(Command("run", (*full, *only), ("plan.toml", bags, labels), fresh_words=full))


def _moved(bags: str, labels: str) -> tuple[str, ...]:
    """The paths of a plan as options, since a fresh run has other paths."""
    return ("--set", f"data.dataset=HOME/{bags}", "--set", f"data.labels=HOME/{labels}")


def heatmap(world: World, random: Random) -> None:
    """Draw maps of a score."""
    if not _repeat(world, "heatmap", random):
        model, bags, folder = _model(world, random), _bags(world, random), random.choice(FOLDERS)
        words = ("heatmap", f"HOME/{model}", f"HOME/{bags}", "--slides", f"HOME/{folder}", "--json")
        score = random.choice(("attention", "attention", "probability"))
        out = (
            ("--score", score)
            if random.random() < 0.7
            else ("--score", score, "--out", "HOME/maps")
        )
        world.command(Command("heatmap", (*words, *out), (model, bags, folder), left_out=("maps",)))


def locate(world: World, random: Random) -> None:
    """Compare scores with annotations."""
    if not _repeat(world, "locate", random):
        model, bags, folder = _model(world, random), _bags(world, random), random.choice(FOLDERS)
        words: tuple[str, ...] = (
            "locate",
            f"HOME/{model}",
            f"HOME/{bags}",
            "--annotations",
            f"HOME/{folder}",
            "--split",
            "all",
        )
        words += (
            "--labels",
            f"HOME/{folder}/labels.csv",
            "--draws",
            "5",
            "--out",
            "HOME/located",
            "--json",
        )
        world.command(Command("locate", words, (model, bags, folder), left_out=("maps",)))


def atlas(world: World, random: Random) -> None:
    """Make the atlas of a model with sparse coding."""
    if not _repeat(world, "atlas", random):
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
            words = (
                "atlas",
                f"HOME/{model}",
                f"HOME/{bags}",
                "--slides",
                f"HOME/{folder}",
                "--tiles",
                "1",
                "--json",
            )
            world.command(Command("atlas", words, (model, bags, folder), left_out=("maps",)))


def view(world: World, random: Random) -> None:
    """Start the viewer on the port of earlier viewers, with a browser that cached their answers."""
    if not _repeat(world, "view", random):
        model, bags, folder = _model(world, random), _bags(world, random), random.choice(FOLDERS)
        words = (
            "view",
            f"HOME/{model}",
            f"HOME/{folder}",
            "--bags",
            f"HOME/{bags}",
            "--port",
            "PORT",
            "--no-open",
        )
        world.command(Command("view", words, (model, bags, folder), left_out=("maps",)))


def paint(world: World, random: Random) -> None:
    """Write synthetic slides into a folder that has slides of these names."""
    words = ("paint", "--out", f"HOME/{random.choice(FOLDERS)}", "--slides", "1", "--side", "1000")
    world.command(Command("paint", words, ()), remember=False)


def _repeat(world: World, verb: str, random: Random) -> bool:
    """Repeat an earlier command; False if there is none or another is wanted."""
    known = [command for (name, _), command in world.last.items() if name == verb]
    known = [
        command for command in known if all((world.home / name).exists() for name in command.inputs)
    ]
    if not known or random.random() >= AGAIN:
        return False
    world.command(random.choice(known))
    return True


def _bags(world: World, random: Random) -> str:
    """A folder of bags; if there is none, slides are encoded first."""
    if not world.bag_folders():
        world.command(_encode("A", "work1"))
    folders = world.bag_folders()
    return random.choice(folders) if folders else f"work1/bags/{ENCODER}"


def _model(world: World, random: Random) -> str:
    """A model; if there is none, one is trained first."""
    if not world.models():
        bags = _bags(world, random)
        words = (
            "train",
            f"HOME/{bags}",
            "HOME/A/labels.csv",
            "--out",
            "HOME/model1",
            "--aggregator",
            "abmil",
            *TRAIN,
        )
        world.command(_train(words))
    models = world.models()
    return random.choice(models) if models else "model1"


def _labels(random: Random) -> str:
    return f"{random.choice(('A', 'A', 'B'))}/labels.csv"


def warm_up_words(home: Path, pool: Path) -> Iterator[list[str]]:
    """Each command once, in an order in which they succeed."""
    fill(home / "A", pool, 0)
    (home / "plan.toml").write_text(
        PLAN.format(home=home, bags=f"work1/bags/{ENCODER}", labels="A/labels.csv", epochs=2)
    )
    bags, model = f"HOME/work1/bags/{ENCODER}", "HOME/model1"
    train = (
        "train",
        bags,
        "HOME/A/labels.csv",
        "--out",
        model,
        "--aggregator",
        "abmil",
        "--sc",
        *TRAIN,
    )
    slide = "HOME/A/slide_001.svs"
    locate = ("locate", model, bags, "--annotations", "HOME/A")
    compare, compared = (
        ("compare", bags, "HOME/A/labels.csv", "--aggregator", "mean"),
        ("--out", "HOME/compared"),
    )
    every = (
        _encode("A", "work1").words,
        train,
        ("predict", model, slide, "--work", "HOME/kept", "--out", "HOME/p.csv"),
        ("predict", model, bags, "--out", "HOME/q.csv"),
        ("run", "HOME/plan.toml", "--out", "HOME/ran", "--jobs", "1"),
        ("heatmap", model, bags, "--slides", "HOME/A"),
        ("atlas", model, bags, "--slides", "HOME/A", "--tiles", "1"),
        (*locate, "--split", "all", "--draws", "5", "--out", "HOME/located"),
        (*compare, "--folds", "2", "--repeats", "1", "--epochs", "2", "--jobs", "1", *compared),
    )
    for words in every:
        yield [word.replace("HOME", str(home)) for word in words]
