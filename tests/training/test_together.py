"""Processes that wait for each other longer than they wait in any one operation."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys, time
import skytune.training.together as together
from datetime import timedelta
from accelerate import Accelerator, InitProcessGroupKwargs
from types import SimpleNamespace

together.EVERY_SECONDS = 0.2
accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=2))])
rank, size = accelerator.process_index, accelerator.num_processes
world = SimpleNamespace(rank=rank, size=size, main=rank == 0)

def work(slow):
    time.sleep(4 if rank == slow else 0)
    return [rank, time.time()]

found = {
    "main": together.main_does(world, lambda: work(0)),
    "mine": together.all_do(world, lambda: work(1)),
    "ended": time.time(),
}
print(json.dumps(found))
if rank == 1:
    sys.stdout.flush()
try:
    together.all_do(world, lambda: 1 / rank)
except ZeroDivisionError:
    print("failed here")
except Exception as error:
    print("lost a peer")
"""


@pytest.mark.slow
def test_waiting_takes_as_long_as_the_work(tmp_path: Path) -> None:
    """Two processes, and operations that wait for 2 s; the work takes 4."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    import os

    def start(rank: int) -> "subprocess.Popen[str]":
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
        return subprocess.Popen([sys.executable, "-c", CODE], env=env, text=True, stdout=subprocess.PIPE)

    ranks = [start(0), start(1)]
    said = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
    first, second = (json.loads(lines[0]) for lines in said)
    assert first["main"] == second["main"] and first["main"][0] == 0, "everybody has what rank 0 returned"
    assert (first["mine"][0], second["mine"][0]) == (0, 1), "everybody has its own"
    assert first["ended"] >= second["mine"][1], "nobody goes on before all are done"
    assert said[0][1:] == ["failed here"] and said[1][1:] == ["lost a peer"]
