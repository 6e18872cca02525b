"""The sbatch file with the real command, in a shell that is signalled as Slurm does it; `scontrol` only writes down."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOLD = """
import os, pathlib, time
class Hold:
    def on_step_end(self, run):
        while str(run.step) == os.environ.get("HOLD_AT") and not pathlib.Path(run.job.root, "preempt").exists():
            time.sleep(0.02)
"""
# It stands still after a step, until it is asked to end: so it cannot be over before.

SCONTROL = '#!/bin/sh\necho "$@" >> "$SCONTROL_CALLS"\n'


class Cluster:
    """A shared file system, and a job that is started again and again."""

    def __init__(self, checkout: Any, words: list[str], commands: Path) -> None:
        self.checkout, self.words, self.calls = checkout, words, commands / "calls"
        (checkout.source / "src" / "hold_steps.py").write_text(HOLD)
        scontrol = commands / "scontrol"
        scontrol.write_text(SCONTROL)
        scontrol.chmod(0o755)
        self.env = {
            **checkout.env,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "SCONTROL_CALLS": str(self.calls),
            "SLURM_JOB_ID": "4711",
            "SLURM_SUBMIT_DIR": str(checkout.source),
            "SKYTUNE_PYTHON": sys.executable,
            "PYTHONFAULTHANDLER": "1",
        }

    def run(self, restarts: int, stop: Callable[[str, int], bool] = lambda line, shell: False) -> tuple[int, str]:
        """Run the job once more; `stop` sees every line until it has signalled. Returns (exit code, output)."""
        script = self.checkout.source / "configs" / "slurm" / "train.sbatch"
        child = subprocess.Popen(
            ["bash", str(script), *self.words],
            env={**self.env, "SLURM_RESTART_COUNT": str(restarts), "HOLD_AT": "" if restarts else "8"},
            cwd=self.checkout.home,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        assert child.stdout is not None
        message = ""
        try:
            for line in child.stdout:
                message += line
                if stop(line, child.pid):
                    break
            try:
                return child.wait(600), message + child.stdout.read()
            except subprocess.TimeoutExpired:
                for process in children(child.pid):
                    os.kill(process, signal.SIGABRT)  # Python says where all its threads are
                child.kill()
                pytest.fail(message + child.stdout.read())
        finally:
            child.kill()
            child.wait()

    def requeued(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture(scope="module")
def cluster(new_checkout: Callable[[], Any], small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    words = [*small, "+callbacks.hold._target_=hold_steps.Hold", "log.every_seconds=0"]
    return Cluster(new_checkout(), words, tmp_path_factory.mktemp("commands"))


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except FileNotFoundError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_the_job_comes_back_until_it_is_done(cluster: Cluster) -> None:
    def time_limit(line: str, shell: int) -> bool:
        step = re.match(r"step (\d+)/", line)
        if step is None or int(step[1]) < 5:
            return False
        os.kill(shell, signal.SIGUSR1)
        return True

    code, output = cluster.run(0, time_limit)
    assert code == 75, output
    assert cluster.requeued() == ["requeue 4711"]
    stopped = int(re.search(r"stopped after step (\d+)", output)[1])  # type: ignore[index]

    def preempted(line: str, shell: int) -> bool:
        """Slurm signals all processes of a job; the shell hands it on, so that run.py gets it twice."""
        for process in (*children(shell), shell):
            os.kill(process, signal.SIGTERM)
            time.sleep(0.2)
        return True

    code, output = cluster.run(1, preempted)  # with its first words: long before a worker runs
    assert code == 75, output
    assert "preempted: SIGTERM; what had been saved is kept, and the same command goes on" in output
    assert len(cluster.requeued()) == 1, "Slurm does that itself, unless the job was cancelled"

    code, output = cluster.run(2)
    assert code == 0, output
    assert f"resuming from step {stopped} " in output
    assert len(cluster.requeued()) == 1


def test_the_file_is_a_shell_script_whose_directives_come_first() -> None:
    """sbatch reads #SBATCH lines up to the first command."""
    script = Path(__file__).resolve().parents[2] / "configs" / "slurm" / "train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text().splitlines()
    command = next(i for i, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    directives = [line.split()[1] for line in lines[:command] if line.startswith("#SBATCH ")]
    assert {"--requeue", "--signal=B:USR1@120", "--open-mode=append", "--nodes=1"} <= set(directives)
    assert not [line for line in lines[command:] if line.startswith("#SBATCH")]
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(script)], check=True)
