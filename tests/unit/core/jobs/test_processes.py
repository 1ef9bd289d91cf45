"""Processes of a pool end with the process that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scmil.core.jobs.processes import process_pool

PARENT = """
import sys, time
from scmil.core.jobs.processes import manager, process_pool

if __name__ == "__main__":
    with manager() as shared, process_pool(2) as pool:
        print(shared._process.pid, *pool.map(work, range(2)), flush=True)
        list(pool.map(time.sleep, [600, 600]))
"""
WORK = """
import os, time
from pathlib import Path

def work(number):
    place = Path(__file__).parent
    (place / f"started{number}").touch()
    while not all((place / f"started{i}").exists() for i in range(2)):
        time.sleep(0.02)  # so that the other process takes the other one
    return os.getpid()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.is_file() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(os.name == "nt", reason="kills by signals")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
@pytest.mark.parametrize("kernel", [True, False], ids=["by the kernel", "by the watching thread"])
def test_processes_end_with_their_parent(how: signal.Signals, kernel: bool, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "sitecustomize.py").write_text(
        "" if kernel else "import sys; sys.platform = 'another'"
    )
    script = tmp_path / "parent.py"
    script.write_text("from work import work" + PARENT)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(set(children)) == 3
    assert all(map(is_alive, children))
    parent.send_signal(how)
    parent.wait()
    deadline = time.monotonic() + 60
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [pid for pid in children if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    parent.stdout.close()
    assert not left


def test_a_pool_does_its_work() -> None:
    with process_pool(1) as pool:
        assert pool.submit(abs, -3).result() == 3
