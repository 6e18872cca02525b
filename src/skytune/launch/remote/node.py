"""On every machine of a job: torchrun with the right ranks, within a time, and an end that says why.

A machine that is not what was asked for (GPUs missing, a driver too old for torch) ends the job before data is loaded.
"""

import math
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from ...common.stop_request import StopRequest
from ...config import UserError
from ...job import JobDir, RankError
from ..gpus import threads_each
from ..local import agent
from ..multinode.topology import Nodes
from ..processes import end_group, environment
from .s3_transfer import INPUTS, S3Transfer

PORT = 29517
"""Where rank 0 waits for the others; nothing else runs on the machine."""


def take_part(job: JobDir, nodes: Nodes, limit: float = math.inf, flag: Path | None = None) -> int:
    """Run this machine's part of a job, of which the launcher's variables say more; return the exit code.

    Args:
        limit: seconds after which the job is ended.
        flag: SIGTERM makes this file, for which the workers look, instead of being handed on to them.
    """
    each, transfer = int(os.environ.get("SKYTUNE_PROCESSES_EACH", "1")), None
    try:
        check_gpus(int(os.environ.get("SKYTUNE_GPUS_EACH", "0")))
        transfer = S3Transfer.from_config(job.job.config, job.job.run_key)
        if transfer is not None and (job.root / INPUTS).is_file():
            transfer.download_inputs(job)
        return _run(job, nodes, each, limit, flag)
    except UserError as error:
        print(f"error: {error}", flush=True)
        record = RankError(type="UserError", message=str(error), user=True, time=time.time())
        job.write_error(nodes.rank * each, record)
        return 1
    finally:
        if transfer is not None:
            _leave(transfer, job, nodes.rank)


def _leave(transfer: S3Transfer, job: JobDir, node: int) -> None:
    """Put what the job left where it outlives this machine; where that fails, the driver fetches it from here."""
    try:
        transfer.upload_outputs(job, node, job.job.fingerprints.get("code"))
    except UserError as error:
        print(f"warning: results stay on this machine: {error}", flush=True)


def check_gpus(wanted: int) -> None:
    """Refuse a machine that lacks GPUs, or whose driver torch cannot use.

    Raises:
        UserError: with what was found and the way out.
    """
    if not wanted:
        return
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found >= wanted:
        return
    driver, supported = _driver()
    needed = torch.version.cuda
    if supported and needed and _version(supported) < _version(needed):
        raise UserError(
            f"this machine's driver ({driver}) is for CUDA {supported}, torch {torch.__version__} needs {needed}: "
            "compute.image_id chooses an image with a newer driver"
        )
    raise UserError(
        f"{wanted} GPUs were asked for on every machine, torch finds {found}"
        + (f" (driver {driver})" if driver else " (no NVIDIA driver answers there)")
        + ": compute.image_id chooses another image, compute.instance_type another machine"
    )


def _driver() -> tuple[str, str]:
    """Return (driver version, newest CUDA it is for); empty where none answers."""
    try:
        output = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    driver, cuda = re.search(r"Driver Version: ([\d.]+)", output), re.search(r"CUDA Version: ([\d.]+)", output)
    return (driver[1] if driver else ""), (cuda[1] if cuda else "")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


class _SignalForwarder(StopRequest):
    """Hands SIGTERM on to the workers, as it is or as a file."""

    def __init__(self, child: "subprocess.Popen[bytes]", flag: Path | None) -> None:
        super().__init__([signal.SIGTERM])
        self.child, self.flag = child, flag

    def on_signal(self, number: int, first: bool) -> None:
        if self.flag is not None:
            self.flag.touch()
        elif self.child.poll() is None:
            os.killpg(self.child.pid, number)


def _run(job: JobDir, nodes: Nodes, each: int, limit: float, flag: Path | None) -> int:
    launch, address = job.job.config.launch, nodes.address or "127.0.0.1"
    env = environment(nodes.count * each, threads_each(launch, each), launch.timeouts.stop)
    env["SKYTUNE_PROGRESS"] = "lines"
    job.logs.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        agent(job, nodes, each, address, nodes.port or PORT), env=env, stdin=subprocess.DEVNULL, start_new_session=True
    )

    _SignalForwarder(child, flag).listen()
    try:
        code = child.wait(None if math.isinf(limit) else limit)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"ended after compute.max_hours={limit / 3600:g}, which the job may take at most; its checkpoints are kept"
        ) from None
    finally:
        end_group(child, launch.timeouts.stop)
    if code == 0 and nodes.rank == 0 and job.read_result() is None:
        print("error: the workers ended without a result", flush=True)
        return 1
    return 0 if code == 0 else 1
