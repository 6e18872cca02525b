"""Workers that no launcher of ours started: `-m skytune.training JOBDIR`, alone, in Accelerate and in torchrun; and a
rank that hangs on another machine."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import RunConfig, WorkerError, to_dict
from skytune.distributed.preemption import FLAG_FILE

ROOT = Path(__file__).resolve().parents[3]
# ZenML and Hydra cannot be imported: a bare machine has neither.
BARE = "import sys\nfor name in ('zenml', 'hydra', 'hydra_zen', 'omegaconf', 'sky'):\n    sys.modules[name] = None\n"


class Laid(Exception):
    pass


@pytest.fixture
def lay(run_job: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    found: list[Path] = []

    class Stop:
        def run(self, job: Any, compute: Any) -> None:
            found.append(job.root)
            raise Laid

    def write(**groups: Any) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr("skytune.launch.run_job.LocalLauncher", Stop)
            with pytest.raises(Laid):
                run_job(rows=16, validation=4, test=4, **groups)
        return found.pop()

    return write


def run(words: list[str], tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "bare").mkdir(exist_ok=True)
    (tmp_path / "bare" / "sitecustomize.py").write_text(BARE)
    path = os.pathsep.join([str(tmp_path / "bare"), str(ROOT / "src")])
    variables = {**os.environ, "PYTHONPATH": path, "HF_HOME": str(tmp_path / "hf"), **env}
    return subprocess.run(
        [sys.executable, *words],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def accelerate(processes: int, precision: str) -> list[str]:
    words = ["-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--num_processes", str(processes)]
    return [*words, "--mixed_precision", precision, "-m", "skytune.training"]


@pytest.mark.slow
def test_in_accelerate(lay: Callable[..., Path], tmp_path: Path) -> None:
    """Without ZenML; what Accelerate was told is not what the configuration says."""
    job = lay(launch={"threads": 1, "num_processes": "auto"})
    done = run([*accelerate(1, "bf16"), str(job)], tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((job / "outputs" / "result.json").read_text())
    assert (result["status"], result["world_size"], result["precision"]) == ("completed", 1, "fp32")

    job = lay(launch={"threads": 1, "num_processes": 2}, name="two")
    done = run([*accelerate(2, "no"), str(job)], tmp_path)
    assert done.returncode == 1
    # Case 2: on a CPU it starts one process in silence, whatever it is told.
    assert "2 worker processes were asked for, 1 came up: not training on the wrong number" in done.stdout


def test_a_folder_runs_again_and_says_how_it_ended(lay: Callable[..., Path], tmp_path: Path) -> None:
    job = lay(launch={"threads": 1})
    outputs = job / "outputs"
    (job / FLAG_FILE).touch()
    done = run(["-m", "skytune.training", str(job)], tmp_path)
    assert done.returncode == 75, "nobody but the exit code tells a batch script that it was cut short"
    assert json.loads((outputs / "result.json").read_text())["status"] == "preempted"
    (job / FLAG_FILE).unlink()
    for old in (outputs / "model" / "old.bin", outputs / "logs" / "rank-0.error.json"):
        old.parent.mkdir(exist_ok=True)
        old.write_text("of an earlier run")
    done = run(["-m", "skytune.training", str(job)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((outputs / "result.json").read_text())["status"] == "completed"
    left = {path.name for path in outputs.rglob("*")}
    assert "model.safetensors" in left and not left & {"old.bin", "rank-0.error.json", ".model.part"}


@pytest.mark.soak
def test_in_torchrun(lay: Callable[..., Path], tmp_path: Path) -> None:
    """Case 24 too: the machine's own Accelerate file says fp16 and 8 processes."""
    job = lay(launch={"num_processes": 2, "threads": 1})
    file = tmp_path / "hf" / "accelerate" / "default_config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("distributed_type: MULTI_GPU\nmixed_precision: fp16\nnum_processes: 8\n")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "skytune.training"]
    done = run([*torchrun, str(job)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("training 2 steps") == 1, "rank 0 alone speaks"
    result = json.loads((job / "outputs" / "result.json").read_text())
    assert (result["status"], result["world_size"], result["precision"]) == ("completed", 2, "fp32")


@pytest.mark.soak
@pytest.mark.slow
def test_a_rank_that_hangs_on_another_machine(
    run_job: Any, trouble: str, pids: Path, left: Callable[..., list[int]], tmp_path: Path
) -> None:
    """Case 26: the others notice in a collective operation; all of both machines end, and the one is named."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = {
        "nodes": 2,
        "num_processes": 2,
        "threads": 1,
        "master_addr": "127.0.0.1",
        "master_port": port,
        "timeouts": {"start": 20.0, "kill": 2.0},
    }
    harm = {"_target_": f"{trouble}.Trouble", "folder": str(pids), "kind": "sleep", "rank": 1}
    config = RunConfig.parse({"launch": {**launch, "node_rank": 1}, "callbacks": {"t": harm}})
    (tmp_path / "config.json").write_text(json.dumps(to_dict(config)))
    log = tmp_path / "machine.log"
    with log.open("wb") as out:
        other = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "helpers" / "machines_apart.py"), str(tmp_path / "config.json")],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    begun = time.monotonic()
    try:
        with pytest.raises(WorkerError) as caught:
            run_job(rows=64, validation=4, test=4, launch=launch, callbacks={"t": harm})
        first, *rest = str(caught.value).splitlines()
        waited = "kept the others waiting for more than 20 s (launch.timeouts.start), and was ended"
        assert first == f"worker process 1 {waited}"
        assert any("trouble ahead on rank 1" in line for line in rest)
        assert time.monotonic() - begun < 600
        assert other.wait(600) == 1
        assert log.read_text().splitlines()[-1].startswith("error: the run failed")
        assert left(expected=2) == []
    finally:
        if other.poll() is None:
            other.kill()
