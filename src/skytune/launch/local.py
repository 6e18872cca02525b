"""Worker processes on this machine."""

import errno
import logging
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, Protocol

import skytune

from ..config import ComputeConfig, Preempted, UserError, WorkerError
from ..job import JobDir
from ..training.preemption import FLAG_FILE
from .follow import Follower
from .gpus import processes_wanted, threads_each
from .processes import end_group, module_command
from .stopping import Stopping

log = logging.getLogger(__name__)

TAIL = 15
"""Lines of a failed rank's log that are shown."""


class Launcher(Protocol):
    """Runs the worker processes of a job somewhere."""

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """Block until the workers have ended; show rank 0's log; leave no process behind, whatever happens.

        Raises:
            UserError: the workers named something the user can act on.
            WorkerError: they failed otherwise; the message holds the last lines of the failing rank's log.
        """


class LocalLauncher:
    """One process directly, several through torchrun (free port, one agent)."""

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`."""
        launch = job.read_job().config.launch
        processes = processes_wanted(compute, launch)
        job.logs.mkdir(parents=True, exist_ok=True)
        tail: deque[str] = deque(maxlen=200)
        follower = Follower(job.logs / "rank-0.log")
        with (
            (job.logs / "output.log").open("ab", buffering=0) as record,
            Stopping(job.root / FLAG_FILE, launch.stop_seconds) as stopping,
        ):
            child = _start(
                command(job, processes), environment(processes, threads_each(launch, processes), launch.stop_seconds)
            )
            try:
                code = _pump(child, record, tail, follower, stopping, job.outputs / "result.json", launch.grace_seconds)
            finally:
                end_group(child, 0.0 if stopping.at_once else launch.grace_seconds)
                follower.look()
        result = job.read_result()
        if stopping.asked_by == signal.SIGINT:
            raise KeyboardInterrupt
        if result is not None and result.get("status") == "preempted":
            failed = result.get("save_failed")
            saved = f"which could NOT be saved ({failed})" if failed else "which is saved"
            raise Preempted(f"stopped after step {result['steps']}, {saved}; the same command goes on")
        if result is None and stopping.asked_by is not None and not job.read_errors():
            # The signal went to all processes, and hit the workers before they listened.
            raise Preempted(
                "stopped without saving; the same command goes on from the last checkpoint, if there is one"
            )
        if code != 0 or result is None:
            raise failure(job, code, list(tail))
        if result["world_size"] != processes:
            raise WorkerError(f"{processes} worker processes were asked for, {result['world_size']} trained")


def command(job: JobDir, processes: int) -> list[str]:
    """Return the command of the workers."""
    return module_command("skytune.training.worker", str(job.root), processes=processes)


def _start(words: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the workers, with SIGUSR1 held back (they inherit that) until they listen to it: a cluster's manager that
    sends it to all processes of a job must not end torchrun's agent, which would die of it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        return subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C on the terminal reaches us alone; we end the whole group.
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def environment(processes: int, threads: int, stop_seconds: float = 60.0) -> dict[str, str]:
    """Return the workers' environment: ours, less whatever another launcher or Accelerate's settings left in it.

    Args:
        stop_seconds: what torchrun's agent grants the workers where it is told to end itself (torch 2.12 or newer;
            older ones grant 30 s).
    """
    foreign = ("ACCELERATE_", "FSDP_", "TORCHELASTIC_", "SLURM_")
    single = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in single}
    source = Path(skytune.__file__).resolve().parents[1]  # comes last on the path: see start.py
    folders = [f for f in env.pop("PYTHONPATH", "").split(os.pathsep) if f and Path(f).resolve() != source]
    if folders:
        env["PYTHONPATH"] = os.pathsep.join(folders)
    env.update(
        # The current folder is not searched: a file there named like a library must not hide it.
        PYTHONSAFEPATH="1",
        PYTHONUNBUFFERED="1",
        OMP_NUM_THREADS=str(threads),
        # Threads that spin while they wait take the cores from each other as soon as anything else runs on them:
        # 5.6 s against 1.3 s a step, seen on 2 cores that were busy with other work.
        OMP_WAIT_POLICY=env.get("OMP_WAIT_POLICY", "PASSIVE"),
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT=str(math.ceil(stop_seconds)),
        SKYTUNE_WORLD_SIZE=str(processes),
        SKYTUNE_LAUNCHER_PID=str(os.getpid()),
        SKYTUNE_STARTED=repr(time.time()),
        SKYTUNE_PROGRESS="bar" if sys.__stdout__ is not None and sys.__stdout__.isatty() else "lines",
        COLUMNS=str(_columns()),
    )
    return env


def failure(job: JobDir, code: int, tail: list[str]) -> UserError:
    """Return the error that says which rank failed first, and why."""
    errors = job.read_errors()
    rank, ended = _root_cause(tail, code, sorted(errors, key=lambda r: errors[r].time))
    error = errors.get(rank)
    if error is not None and error.user:
        return UserError(error.message)
    log = job.logs / f"rank-{rank}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    if error is None and rank == 0:
        lines += tail  # died without a word of its own: what was printed last (an import error, a C++ trace)
    reason = f"{error.type}: {error.message.splitlines()[0]}" if error is not None else ended
    shown = "\n".join(f"  {line}" for line in lines[-TAIL:])
    return WorkerError(f"worker process {rank} failed: {reason}\nthe last lines of {log}:\n{shown}")


def _root_cause(tail: list[str], code: int, failed: list[int]) -> tuple[int, str]:
    """Return (rank, how it ended) of the rank to blame.

    Ranks that lose a peer fail too, often within the same moment, so what torchrun happened to see first is not enough:
    a rank that was killed without a word comes first, then the first that left an error file, then torchrun's choice.
    """
    pairs = re.findall(r"\brank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+)", "\n".join(tail))
    codes = {int(rank): int(number) for rank, number in pairs}  # the root cause comes last in torchrun's list
    for rank, number in reversed(codes.items()):
        if number < 0 and number != -signal.SIGTERM and rank not in failed:
            return rank, _ended(number)
    if failed:
        return failed[0], _ended(codes.get(failed[0], code))
    if codes:
        rank = int(pairs[-1][0])
        return rank, _ended(codes[rank])
    return 0, _ended(code)


def _ended(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory, or somebody killed it)" if name == "SIGKILL" else ""
        return f"it was ended by {name}{hint}"
    return f"it ended with exit code {code} and left no result"


def _pump(
    child: "subprocess.Popen[bytes]",
    record: IO[bytes],
    tail: deque[str],
    follower: Follower,
    stopping: Stopping,
    result: Path,
    grace: float,
) -> int:
    """Show what rank 0 prints while it prints it; keep everything in the record, the end also in `tail`.

    Returns:
        The child's exit code; 0 for one that left its result and then did not end within `grace` seconds.
    """
    assert child.stdout is not None and child.stderr is not None
    pending = {"out": b"", "err": b""}
    until = None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, "out")
        selector.register(child.stderr, selectors.EVENT_READ, "err")
        while True:
            ended = child.poll() is not None
            # A process that outlives the workers (a loader of theirs) may hold the pipe open for ever.
            ready = selector.select(timeout=0.2 if ended else 0.5)
            if ended and not ready:
                break
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                _record(record, chunk)
                if key.data == "out":
                    _show(chunk)
                *lines, pending[key.data] = (pending[key.data] + chunk).split(b"\n")
                tail.extend(line.decode(errors="replace") for line in lines)
            follower.look()
            stopping.check()
            if until is None and result.is_file():
                until = time.monotonic() + grace
            if until is not None and time.monotonic() > until and child.poll() is None:
                log.warning("the worker processes left their result but did not end (a thread of theirs?): ended them")
                return 0
    tail.extend(rest.decode(errors="replace") for rest in pending.values() if rest)  # last words without a line's end
    return child.wait()


def _record(record: IO[bytes], chunk: bytes) -> None:
    try:
        record.write(chunk)
    except OSError as error:  # a full disk must not end the workers
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _show(chunk: bytes) -> None:
    """Pass bytes on as they are: a progress bar redraws its line."""
    stream = sys.__stdout__
    if stream is None:
        return
    stream.flush()
    os.write(stream.fileno(), chunk)


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
