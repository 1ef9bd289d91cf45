"""How far are the aggregators from the code of their authors?

    python benchmarks/fidelity.py

Each network gets the weights of the golden numbers in tests/data/golden, which the authors' code
produced, and its outputs, losses and gradients are compared with them. The result holds the largest
difference of each file: outputs relative to the largest magnitude of the output (at least 0.1),
gradients relative to the norm of the gradient of the tensor plus 0.01 of the largest such norm of
the bag. oneDNN is off, as for the golden numbers.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from golden_cases import CASES, LAYERS, onednn  # noqa: E402
from golden_comparisons import largest_differences  # noqa: E402
from golden_numbers import Golden  # noqa: E402

RESULTS = HERE / "results" / "fidelity.json"
LAYER_NAMES = {"sc": "sparse coding, released", "rrt": "rrt", "s4d": "s4mil"}
CLOSE = 1e-5  # largest accepted difference


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    aggregators = {case.file: case.aggregator for case in CASES}
    aggregators |= {name: LAYER_NAMES[name.split("_")[0]] for name in LAYERS}
    with onednn(False):
        found = largest_differences(lambda name: print(name, flush=True))
    files: dict[str, Any] = {}
    for name, differences in found.items():
        golden = Golden(name)
        files[name] = {
            "aggregator": aggregators[name],
            "repository": golden.meta["repository"],
            "commit": golden.meta["commit"],
            "bags": len(golden.bags),
            "outputs": float(f"{differences.outputs:.1e}"),
            "gradients": float(f"{differences.gradients:.1e}"),
        }
    content = {"machine": platform.machine(), "torch": torch.__version__, "files": files}
    options.out.write_text(json.dumps(content, indent=2) + "\n")
    worst = max(max(each["outputs"], each["gradients"]) for each in files.values())
    print(f"largest difference {worst:.1e} of {len(files)} files in {options.out}")
    return int(worst > CLOSE)


if __name__ == "__main__":
    sys.exit(main())
