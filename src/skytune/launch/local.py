"""Worker processes on this machine."""

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

from ..config import ComputeConfig, UserError, WorkerError
from ..job import JobDir
from .gpus import processes_wanted, threads_each

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
        with (job.logs / "output.log").open("ab") as record:
            child = subprocess.Popen(
                command(job, processes),
                env=environment(processes, threads_each(launch, processes)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C on the terminal reaches us alone; we end the whole group.
                start_new_session=True,
            )
            try:
                _pump(child, record, tail)
                code = child.wait()
            finally:
                end_group(child, launch.grace_seconds)
        result = job.read_result()
        if code != 0 or result is None:
            raise failure(job, code, list(tail))
        if result["world_size"] != processes:
            raise WorkerError(f"{processes} worker processes were asked for, {result['world_size']} trained")


def command(job: JobDir, processes: int) -> list[str]:
    """Return the command of the workers."""
    worker = ["-m", "skytune.training.worker", str(job.root)]
    if processes == 1:
        return [sys.executable, *worker]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    return [sys.executable, *torchrun, "--nproc-per-node", str(processes), *worker]


def environment(processes: int, threads: int) -> dict[str, str]:
    """Return the workers' environment: ours, less whatever another launcher or Accelerate's settings left in it."""
    foreign = ("ACCELERATE_", "FSDP_", "TORCHELASTIC_", "SLURM_")
    single = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in single}
    source = str(Path(skytune.__file__).resolve().parents[1])
    env.update(
        PYTHONPATH=os.pathsep.join(filter(None, [env.get("PYTHONPATH"), source])),
        # The current folder is not searched: a file there named like a library must not hide it.
        PYTHONSAFEPATH="1",
        PYTHONUNBUFFERED="1",
        OMP_NUM_THREADS=str(threads),
        SKYTUNE_WORLD_SIZE=str(processes),
        SKYTUNE_LAUNCHER_PID=str(os.getpid()),
        SKYTUNE_STARTED=repr(time.time()),
        SKYTUNE_PROGRESS="bar" if sys.__stdout__ is not None and sys.__stdout__.isatty() else "lines",
        COLUMNS=str(_columns()),
    )
    return env


def end_group(child: "subprocess.Popen[bytes]", grace: float) -> None:
    """Ask the child's whole process group to end, then make it: nothing of it is left when this returns."""
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        if not _group_alive(child.pid):
            break
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        until = time.monotonic() + wait
        while time.monotonic() < until and _group_alive(child.pid):
            child.poll()  # a dead leader is a zombie, and alive to the kernel, until it is waited for
            time.sleep(0.02)
    child.wait()
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


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
    """Return (rank, how it ended): what torchrun saw first, else the first rank that left an error file."""
    text = "\n".join(tail)
    match = re.search(r"Root Cause.*?\brank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", text, re.DOTALL)
    if match:
        return int(match[1]), _ended(int(match[2]))
    return (failed[0] if failed else 0), _ended(code)


def _ended(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory, or somebody killed it)" if name == "SIGKILL" else ""
        return f"it was ended by {name}{hint}"
    return f"it ended with exit code {code} and left no result"


def _pump(child: "subprocess.Popen[bytes]", record: IO[bytes], tail: deque[str]) -> None:
    """Show what rank 0 prints while it prints it; keep everything in the record, the end also in `tail`."""
    assert child.stdout is not None and child.stderr is not None
    pending = {"out": b"", "err": b""}
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, "out")
        selector.register(child.stderr, selectors.EVENT_READ, "err")
        while selector.get_map():
            for key, _ in selector.select(timeout=1.0):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                record.write(chunk)
                record.flush()
                if key.data == "out":
                    _show(chunk)
                *lines, pending[key.data] = (pending[key.data] + chunk).split(b"\n")
                tail.extend(line.decode(errors="replace") for line in lines)
            # A process that outlives the workers (a loader of theirs) may hold the pipe open for ever.
            if child.poll() is not None and not selector.select(timeout=0.2):
                break


def _show(chunk: bytes) -> None:
    """Pass bytes on as they are: a progress bar redraws its line."""
    stream = sys.__stdout__
    if stream is None:
        return
    stream.flush()
    os.write(stream.fileno(), chunk)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
