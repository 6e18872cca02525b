"""Processes that wait for each other longer than they wait in any one operation, and send each other no pickles."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

CODE = """
import json, sys, time
import torch
import skytune.distributed.collectives as together
from datetime import timedelta
from accelerate import Accelerator, InitProcessGroupKwargs
from types import SimpleNamespace

together.EVERY_SECONDS = 0.2
accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=2))])
rank, size = accelerator.process_index, accelerator.num_processes
world = SimpleNamespace(rank=rank, size=size, main=rank == 0, device=torch.device("cpu"))

def work(slow):
    time.sleep(3 if rank == slow else 0)
    return [rank, time.time()]

found = {
    "rank": rank,
    "main": together.main_does(world, lambda: work(0)),
    "mine": together.all_do(world, lambda: work(1)),
    "ended": time.time(),
    "bytes": [part.hex() for n in (0, 3) for part in together.gather_bytes(world, bytes([rank]) * n * rank)],
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
    assert life.code == 0, life.output
    lines = [json.loads(line) for line in life.output.splitlines() if line.startswith("{")]
    first, second = sorted(lines, key=lambda found: found["rank"])
    assert first["main"] == second["main"] and first["main"][0] == 0, "everybody has what rank 0 returned"
    assert (first["mine"][0], second["mine"][0]) == (0, 1), "everybody has its own"
    assert first["ended"] >= second["mine"][1], "nobody goes on before all are done"
    assert first["bytes"] == second["bytes"] == ["", "", "", "010101"]
    assert (first["then"], second["then"]) == ("failed here", "lost a peer")


NO_PICKLES = """
import pickle
import torch.distributed.distributed_c10d as c10d
from skytune.training.worker import main

def refuse(*_, **__):
    raise AssertionError("something was unpickled")

pickle.load = pickle.loads = pickle.Unpickler = c10d._unpickler = refuse
if main([{job!r}]):
    raise SystemExit(1)
"""


@pytest.mark.parametrize("name", ["ddp", "fsdp", "optimizer_sharding"])
def test_nothing_that_comes_from_a_peer_is_unpickled(lives: Any, place: Any, name: str) -> None:
    """Two processes train, save together, and go on from what they saved; a second run goes on on what lies there."""
    settings = {"checkpoint": {"every_steps": 2}, "max_steps": 4, "strategy": {"name": name}, "rows": 40}
    job = place.lay(f"peers-{name.replace('_', '-')}", **settings)
    for steps in (0, 2):
        for folder in Path(json.loads((job / "job.json").read_text())["config"]["checkpoint"]["store"]).glob("*"):
            (folder / "finished.json").unlink()  # as if it had ended before
            (folder / "completed.json").unlink()
            shutil.rmtree(folder / "step-00000004")
        life = lives.live(job, 2, NO_PICKLES.format(job=str(job)))
        assert life.code == 0, life.output
        result = json.loads((job / "outputs" / "result.json").read_text())
        assert (result["world_size"], result["resumed_from"] or 0) == (2, steps), life.output
