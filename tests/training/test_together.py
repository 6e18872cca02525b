"""Processes that wait for each other longer than they wait in any one operation."""

import json
from pathlib import Path
from typing import Any

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
    time.sleep(3 if rank == slow else 0)
    return [rank, time.time()]

found = {
    "rank": rank,
    "main": together.main_does(world, lambda: work(0)),
    "mine": together.all_do(world, lambda: work(1)),
    "ended": time.time(),
}
try:
    together.all_do(world, lambda: 1 / rank)
except ZeroDivisionError:
    found["then"] = "failed here"
except Exception:
    found["then"] = "lost a peer"
print(json.dumps(found) + "\\n", end="", flush=True)
"""


def test_waiting_takes_as_long_as_the_work(lives: Any, tmp_path: Path) -> None:
    """Two processes, and operations that wait for 2 s; the work takes 3."""
    life = lives.live(tmp_path, 2, CODE)
    assert life.code == 0, life.said
    lines = [json.loads(line) for line in life.said.splitlines() if line.startswith("{")]
    first, second = sorted(lines, key=lambda found: found["rank"])
    assert first["main"] == second["main"] and first["main"][0] == 0, "everybody has what rank 0 returned"
    assert (first["mine"][0], second["mine"][0]) == (0, 1), "everybody has its own"
    assert first["ended"] >= second["mine"][1], "nobody goes on before all are done"
    assert (first["then"], second["then"]) == ("failed here", "lost a peer")
