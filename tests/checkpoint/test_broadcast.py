"""Two processes of two machines: what one sees in its folder reaches the other, or is refused."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

RANK = """
import json, os, sys, time
from pathlib import Path
import torch
from accelerate import Accelerator
from skytune.config import Precision, UserError
from skytune.checkpoint import broadcast as spreading
from skytune.checkpoint.store import Store
from skytune.distributed.context import DistContext

root, rank = Path(sys.argv[1]), int(os.environ["RANK"])
accelerator = Accelerator(cpu=True)
world = DistContext(rank, 2, torch.device("cpu"), Precision.fp32)
spreading.CHUNK = 1000  # many parts

def answer_of(function):
    try:
        found = function()
    except UserError as error:
        return str(error)
    if found is None:
        return "nothing"
    return {name: path.read_bytes().hex() for name, path in found.files.items()}

answers = {}
# Both name the same folder; on the second machine it is another one.
for case in ("apart", "shared"):
    place = root / ("machine-1" if case == "apart" and rank == 1 else "machine-0")
    store, cache = Store.open(str(place), "run"), root / f"cache-{rank}"
    answers[case] = answer_of(lambda: spreading.fetch_everywhere(world, store, 3, cache))
    answers[f"{case}, refused"] = answer_of(lambda: spreading.check_store_shared(world, store, "fsdp"))
    until = time.monotonic() + 600  # the other process takes its mark away when both have looked
    while (left := sorted(path.name for path in (place / "run").glob(".*"))) and time.monotonic() < until:
        time.sleep(0.05)
    answers[f"{case}, left"] = left
(root / f"answers-{rank}.json").write_text(json.dumps(answers))
accelerator.end_training()
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    from skytune.checkpoint.store import Store

    root = tmp_path_factory.mktemp("spreading")
    Store.open(str(root / "machine-0"), "run").write(3, FILES)
    env = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        env["MASTER_PORT"] = str(probe.getsockname()[1])
    words = [sys.executable, "-c", textwrap.dedent(RANK), str(root)]
    ranks = [subprocess.Popen(words, env={**env, "RANK": str(rank)}, stderr=subprocess.PIPE) for rank in range(2)]
    for rank in ranks:
        assert rank.wait(600) == 0, rank.stderr.read().decode() if rank.stderr else ""
        assert rank.stderr is not None
        rank.stderr.close()
    return [json.loads((root / f"answers-{rank}.json").read_text()) for rank in range(2)]


FILES = {"model.safetensors": bytes(range(256)) * 17, "state.json": b"{}", "empty": b""}


def test_all_get_the_same_files(answers: list[dict[str, Any]]) -> None:
    wanted = {name: data.hex() for name, data in FILES.items()}
    for case in ("apart", "shared"):
        assert [{name: found[case][name] for name in wanted} for found in answers] == [wanted, wanted], case


def test_parts_of_processes_need_a_folder_that_all_see(answers: list[dict[str, Any]]) -> None:
    for found in answers:
        assert (
            "another machine does not see it, and with strategy=fsdp every process saves its part"
            in found["apart, refused"]
        )
        assert found["shared, refused"] == "nothing"
        assert found["apart, left"] == found["shared, left"] == []
