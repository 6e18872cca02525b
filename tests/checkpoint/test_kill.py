"""A process is killed in the middle of saving, rotating and announcing, again and again: nothing announced is lost."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skytune.checkpoint.store import Store, rotate

# Imports once, then forks a process for every line it reads: a life costs a few milliseconds.
SCRIPT = """
import os, sys
from skytune.checkpoint.store import rotate
from skytune.checkpoint.store import Store
if sys.argv[1].startswith("s3:"):
    import s3fs
for line in sys.stdin:
    child = os.fork()
    if child:
        print("pid", child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)
        continue
    store = Store.open(sys.argv[1], "run-1")
    found = store.newest()
    store.sweep()
    step = found.manifest.step if found else 0
    print(f"resumed {step}\\n", end="", flush=True)  # in one write, whatever PYTHONUNBUFFERED says
    while True:
        step += 1
        weights = step.to_bytes(4, "big") * 20000
        store.write(step, {"model.safetensors": weights, "optimizer.safetensors": weights * 2, "optimizer.json": b"{}"})
        print(f"saved {step}\\n", end="", flush=True)
        rotate(store, int(sys.argv[2]), newest=step)
"""


def lives(url: str, keep: int, rounds: int, longest: float, draw: random.Random) -> list[tuple[int, int]]:
    """Let a saving process live `rounds` times; return (resumed at, last announced) of each life, 0 for nothing."""
    zygote = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, url, str(keep)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert zygote.stdin is not None and zygote.stdout is not None
    found = []
    try:
        for number in range(rounds):
            zygote.stdin.write("live\n")
            zygote.stdin.flush()
            pid = int(zygote.stdout.readline().split()[1])
            resumed = zygote.stdout.readline().split()
            assert resumed[0] == "resumed", resumed
            announced = 0
            if number % 4:  # of every four lives three save something, however slow the machine is
                announced = int(zygote.stdout.readline().split()[1])
            time.sleep(draw.uniform(0, longest))
            os.kill(pid, signal.SIGKILL)
            while (line := zygote.stdout.readline()) != "dead\n":
                assert line.startswith("saved "), line
                announced = int(line.split()[1])
            found.append((int(resumed[1]), announced))
    finally:
        zygote.kill()
        zygote.wait()
    return found


def check(store: Store, url: str, keep: int, rounds: int, longest: float) -> int:
    announced = 0
    for resumed, last in lives(url, keep, rounds, longest, random.Random(rounds * keep)):
        assert resumed >= announced
        announced = max(last, resumed)
    found = store.newest()
    if announced:
        assert found is not None and found.manifest.step >= announced
    return announced


@pytest.mark.parametrize("keep", [1, 2])
def test_killed_while_saving_to_a_folder(tmp_path: Path, keep: int):
    store = Store.open(str(tmp_path), "run-1")
    assert check(store, str(tmp_path), keep, 8, 0.1) > 5
    store.sweep()
    rotate(store, keep)
    assert len(store.steps()) <= keep
    assert sorted(os.listdir(tmp_path / "run-1"))[0] == "completed.json"  # nothing temporary is left


def test_killed_while_saving_to_s3(s3_store: Store):
    assert check(s3_store, s3_store.backend.url, 1, 10, 0.3) > 2
    s3_store.sweep()
    assert s3_store.newest().skipped == ()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("url", ["file", "s3"], indirect=True)
def test_killed_two_hundred_times(store: Store):
    url = store.backend.url
    assert check(store, url, 1, 200, 0.5) > 50
