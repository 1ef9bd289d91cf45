"""Does memory use stay constant?   python campaign/soak.py --minutes 60

One process repeats a whole study: it tiles and encodes synthetic slides, trains a model with sparse
coding, predicts, scores tiles, draws heatmaps, and requests pictures from the viewer over HTTP.
After every round and a garbage collection, its resident memory and its open file handles are
recorded. The result is `results/soak.json`, updated after every round.

Memory use is constant if the median of the last quarter is at most 5 % above that of the second
quarter (the first fills caches), and no additional file handle or thread is open.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import traceback
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from shared import RESULTS, paint_cohort, say, write_result

LARGEST_GROWTH = 1.05
SLIDES, SIDE_PX, EPOCHS = 8, 1000, 3
ENCODER = "efficientnet-lite0"
Sample = dict[str, float]


def main() -> int:
    """Run the rounds, write the result, and return 1 unless memory use is constant."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--rounds", type=int, default=4, help="minimum number of rounds")
    options.add_argument("--slides", type=int, default=SLIDES)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak") as home:
        labels = paint_cohort(Path(home) / "slides", arguments.slides, SIDE_PX, arguments.seed)
        page = soak(labels, arguments.minutes, arguments.rounds, arguments.seed, arguments.out)
    say(f"{page['rounds']} rounds, memory x {page['growth']}, flat: {page['flat']}")
    return 0 if page["flat"] else 1


def soak(labels: Path, minutes: float, rounds: int, seed: int, out: Path) -> dict[str, Any]:
    """Run rounds on the slides beside a table until the time is over, and return the result."""
    from scmil.encoding.encoders import load_encoder

    home = labels.parents[1]
    encoder, samples, start = load_encoder(ENCODER), list[Sample](), time.monotonic()
    failed: list[str] = []
    while time.monotonic() < start + 60 * minutes or len(samples) < rounds:
        begun = time.monotonic()
        try:
            one_round(home, labels, encoder, seed)
        except Exception:
            failed.append(f"round {len(samples)}: {traceback.format_exc(limit=-4)}")
        samples.append(sample(time.monotonic() - start, time.monotonic() - begun))
        page = evaluate(samples, failed, minutes, seed)
        write_result(out, page)
        say(f"round {len(samples)}: {samples[-1]}" + (f" FAILED {failed[-1]}" if failed else ""))
        if len(failed) > 3:
            break
    finished = {**page, "finished": True}
    write_result(out, finished)
    return finished


def one_round(home: Path, labels: Path, encoder: Any, seed: int) -> None:
    """Run a whole study in a folder that the next round deletes."""
    from scmil import studies as study
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import read_labels
    from scmil.encoding.cohort import bags_folder, encode_slides, find_cohort, tile_slides
    from scmil.viz.heatmaps import draw_heatmaps

    work, model = home / "work", home / "model"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(model, ignore_errors=True)
    outcomes = [tile_slides(find_cohort(home / "slides"), work), encode_slides(work, encoder)]
    if any(outcome.failed for outcome in outcomes):
        raise RuntimeError(str(outcomes))
    folder = bags_folder(work, encoder.name)
    data = study.open_data(folder, labels)
    study.train(
        data, model, sparse_coding={"atoms": 16}, epochs=EPOCHS, valid=0.25, test=0.25, seed=seed
    )
    bags = open_bags(folder, labels=read_labels(labels))
    study.predict_folder(model, bags, home / "predictions" / "predictions.csv")
    draw_heatmaps(model, bags, slides=home / "slides")
    view(model, home / "slides")


def view(model: Path, slides: Path) -> None:
    """Request the list of slides, and pictures, scores and a layer of each, as the page does."""
    from scmil.viz.viewer import Library, Server

    server = Server(Library([model], slides))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for place in range(len(json.loads(get(server, "/api/slides"))["slides"])):
            get(server, f"/api/slide/{place}")
            get(server, f"/api/slide/{place}/scores?kind=attention")
            get(server, f"/api/slide/{place}/layer.geojson?kind=attention")
            get(server, f"/api/slide/{place}/outlines")
            get(server, f"/api/slide/{place}/tile/0")
            for level in range(12):
                get(server, f"/dz/{place}/{level}/0_0.jpg", missing=True)
    finally:
        server.stop()
        thread.join()


def get(server: Any, path: str, missing: bool = False) -> bytes:
    """The content at a path; with `missing` the status may be 404."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", server.path(path), headers={"Cookie": server.cookie})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != 200 and not (missing and answer.status == 404):
        raise RuntimeError(f"{path}: {answer.status} {content[:200]!r}")
    return content


def sample(at: float, took: float) -> Sample:
    """Memory, handles and threads of this process, after a garbage collection."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "minute": round(at / 60, 2),
        "seconds": round(took, 1),
        "rss_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }


def evaluate(samples: list[Sample], failed: list[str], minutes: float, seed: int) -> dict[str, Any]:
    """The medians of the second and last quarter, and whether they are equal enough.

    >>> one = {"minute": 1, "seconds": 1, "rss_mib": 500, "handles": 9, "threads": 4}
    >>> evaluate([one] * 8, [], 1, 0)["flat"]
    True
    >>> evaluate([{**one, "handles": i} for i in range(8)], [], 1, 0)["flat"]
    False
    """
    quarter = max(len(samples) // 4, 1)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    second, last = (
        {name: _median(part, name) for name in ("rss_mib", "handles", "threads")}
        for part in (early, late)
    )
    growth = round(last["rss_mib"] / second["rss_mib"], 4) if early else 1.0
    more = last["handles"] > second["handles"] or last["threads"] > second["threads"]
    return {
        "minutes": minutes,
        "seed": seed,
        "rounds": len(samples),
        "finished": False,
        "failed_rounds": failed,
        "second_quarter": second,
        "last_quarter": last,
        "growth": growth,
        "flat": growth <= LARGEST_GROWTH and not more and not failed,
        "samples": samples,
    }


def _median(part: list[Sample], name: str) -> float:
    return statistics.median(one[name] for one in part) if part else 0.0


if __name__ == "__main__":
    sys.exit(main())
