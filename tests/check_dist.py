"""The wheel, as a stranger meets it, in a fresh environment outside of the repository: python
tests/check_dist.py dist/*.whl

`make dist` runs this. It installs what the wheel asks for, step by step: the core without torch,
which is measured; torch; then all extras. What it needs of the network is what pip needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MB = 120
NOT_OURS = ("pip", "setuptools", "_distutils_hack", "pkg_resources")


def main() -> None:
    """Check one wheel; the first thing that does not hold ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--work", type=Path, help="A folder for the environment; default: one that is thrown away."
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as thrown_away:
        check(given.wheel.resolve(), (given.work or Path(thrown_away)).resolve())


def check(wheel: Path, work: Path) -> None:
    """All steps, in the folder `work`, which is not below the repository."""
    if ROOT in work.parents:
        raise SystemExit(f"{work} is below the repository, whose files would be found there too.")
    check_content(wheel)
    venv.create(work / "env", with_pip=True, clear=True)
    os.chdir(work)
    core = [name for name in requirements(wheel) if not name.startswith("torch")]
    pip(work, *core)
    pip(work, "--no-deps", str(wheel))
    check_size(work / "env")
    scmil(work, "--version")
    pip(work, str(wheel))  # torch comes now
    check_core(work)
    pip(work, f"{wheel}[all]")
    check_all(work)
    say("the wheel works outside of the repository")


def say(words: str) -> None:
    """A line, at once."""
    print(f"== {words}", flush=True)


def check_content(wheel: Path) -> None:
    """Types, lists and the viewer's page are inside; tests are not."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = [source / "scmil" / "py.typed", *(source / "scmil").glob("bags/datasets/lists/*.csv")]
    wanted += [
        path
        for path in (source / "scmil" / "viz" / "viewer" / "static").rglob("*")
        if path.is_file()
    ]
    for pattern in ("*.py", "*.css", "*.js"):
        wanted += (source / "scmil").rglob(pattern)
    if missing := {str(path.relative_to(source)) for path in wanted} - inside:
        raise SystemExit(f"not in the wheel: {', '.join(sorted(missing))}")
    if foreign := [name for name in inside if not re.match(r"scmil(-[\w.]+\.dist-info)?/", name)]:
        raise SystemExit(f"in the wheel, but not ours: {', '.join(sorted(foreign))}")
    say(f"{wheel.name}: {len(inside)} files, {wheel.stat().st_size / 1e6:.1f} MB")


def requirements(wheel: Path) -> list[str]:
    """What the wheel needs without any extra."""
    with zipfile.ZipFile(wheel) as file:
        metadata = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = re.findall(r"^Requires-Dist: (.+)$", file.read(metadata).decode(), re.M)
    return [line for line in lines if "extra ==" not in line]


def pip(work: Path, *words: str) -> None:
    """Install, at the versions of constraints.txt."""
    say(
        "pip install "
        + " ".join(Path(word).name if word.startswith("/") else word for word in words)
    )
    command = [
        work / "env" / "bin" / "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "-c",
        ROOT / "constraints.txt",
    ]
    subprocess.run([*map(str, command), *words], check=True)


def scmil(work: Path, *words: str, fails_with: str = "") -> str:
    """Run the command of the fresh environment; if it should fail, with these words and no
    traceback.
    """
    say(f"scmil {' '.join(words)}")
    done = subprocess.run(
        [work / "env" / "bin" / "scmil", *words], capture_output=True, text=True, cwd=work
    )
    if (
        bool(done.returncode) != bool(fails_with)
        or fails_with not in done.stderr
        or "Traceback" in done.stderr
    ):
        raise SystemExit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def check_size(environment: Path) -> None:
    """The core without torch is small; each package is printed."""
    [packages] = environment.glob("lib/python*/site-packages")
    sizes: dict[str, int] = {}
    for path in packages.iterdir():
        if not path.name.startswith(NOT_OURS) and path.suffix != ".dist-info":
            files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
            sizes[path.name] = sum(file.stat().st_size for file in files)
    total = sum(sizes.values()) / 1e6
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:8]:
        print(f"   {size / 1e6:7.1f} MB  {name}")
    say(f"the core without torch takes {total:.0f} MB; at most {MOST_MB} are allowed")
    if total > MOST_MB:
        raise SystemExit(1)


def check_core(work: Path) -> None:
    """Without extras: training and prediction work, and what needs an extra says which."""
    table = work / "bags.csv"
    rows = [f"bag_{i},{i % 2},{i % 2 + j / 10},{-j}" for i in range(20) for j in range(3)]
    table.write_text("bag,label,f0,f1\n" + "\n".join(rows) + "\n")
    scmil(work, "ls")
    scmil(work, "train", "bags.csv", "--sc", "--epochs", "2", "--out", "model")
    scmil(work, "predict", "model", "bags.csv")
    scmil(work, "compare", "bags.csv", "--out", "run", fails_with="pip install 'scmil[statistics]'")
    scmil(work, "info", "slide.svs", fails_with="slide.svs")
    scmil(work, "paint", "--out", "slides", fails_with="pip install 'scmil[slides]'")


def check_all(work: Path) -> None:
    """With all extras: doctor, demo, examples, and no file of the repository in use."""
    found = json.loads(scmil(work, "doctor", "--json"))
    if problems := [check for check in found if not check["ok"] and not check["optional"]]:
        raise SystemExit(f"doctor: {problems}")
    scmil(
        work, "demo", "--slides", "8", "--folds", "2", "--repeats", "1", "--out", "demo", "--json"
    )
    python = work / "env" / "bin" / "python"
    for example in sorted((ROOT / "examples").glob("*.py")):
        say(example.name)
        subprocess.run(
            [python, shutil.copy(example, work)], check=True, cwd=work, stdout=subprocess.DEVNULL
        )
    where = subprocess.run(
        [python, "-c", "import scmil; print(scmil.__file__)"],
        capture_output=True,
        text=True,
        cwd=work,
    )
    if str(work) not in where.stdout:
        raise SystemExit(f"scmil was imported from {where.stdout}")


if __name__ == "__main__":
    main()
