"""What a machine of a training job does around its workers, and what the container starts."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from skytune.config import RunConfig
from skytune.distributed.preemption import FLAG_FILE
from skytune.job import Job, JobDir
from skytune.launch.remote.outcome import TIME_UP
from skytune.launch.sagemaker import entry, node


@pytest.mark.parametrize(("host", "rank"), [("algo-1", 0), ("algo-2", 1), ("algo-10", 9)])
def test_ranks_come_from_sagemakers_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, rank: int
) -> None:
    for name in ("SM_HOSTS", "SM_CURRENT_HOST", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)
    (tmp_path / "input" / "config").mkdir(parents=True)
    hosts = [f"algo-{n}" for n in (10, 1, 2, 3, 4, 5, 6, 7, 8, 9)]
    config = {"current_host": host, "hosts": hosts, "network_interface_name": "eth7"}
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text(json.dumps(config))
    found = node.this_node(tmp_path)
    assert (found.count, found.rank, found.address) == (10, rank, "algo-1")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7"


def test_a_job_asks_its_workers_to_save_before_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobDir(tmp_path / "job")
    job.write_job(Job(kind="train", run_key="k", config=RunConfig(), labels=["a", "b"]))
    monkeypatch.setenv("SKYTUNE_MAX_SECONDS", "3600")
    monkeypatch.setenv("SKYTUNE_SAVE_SECONDS", "600")
    monkeypatch.setenv("SKYTUNE_BEGAN", repr(time.time() - 2999.9))
    node.watch_time(job)
    while not (job.root / FLAG_FILE).exists():
        time.sleep(0.02)
    assert (job.logs / TIME_UP).is_file()


def sent(folder: Path, requirements: str, bootstrap: str) -> dict[str, str]:
    """Lay out what SageMaker downloads; return the environment."""
    channel = folder / "ml" / "input" / "data" / "skytune"
    channel.mkdir(parents=True)
    with zipfile.ZipFile(channel / entry.SENT, "w") as archive:
        archive.writestr("requirements.txt", requirements)
        archive.writestr("constraints.txt", "")
        archive.writestr("code/skytune/launch/bootstrap.py", bootstrap)
    places = {"SKYTUNE_OPT_ML": str(folder / "ml"), "SKYTUNE_SCRATCH": str(folder / "scratch")}
    return {**os.environ, **places, "PIP_NO_INDEX": "1"}


def test_what_cannot_be_installed_ends_the_container_with_pips_words(tmp_path: Path) -> None:
    env = sent(tmp_path, "no-such-package-of-ours==1\n", "raise SystemExit(0)")
    done = subprocess.run([sys.executable, entry.__file__], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package-of-ours" in done.stdout
    assert "no-such-package-of-ours" in (tmp_path / "ml" / "output" / "failure").read_text()


def test_sigterm_reaches_what_runs_and_its_exit_code_is_the_containers(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', *sys.argv[1:], flush=True)\n"
        "time.sleep(600)\n"
    )
    env = sent(tmp_path, "\n", script)
    child = subprocess.Popen([sys.executable, entry.__file__], env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == f"ready skytune.launch.sagemaker.node {tmp_path}/scratch/job\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.read() == "saved\n"
    assert child.wait() == 0 and not (tmp_path / "ml" / "output" / "failure").exists()
