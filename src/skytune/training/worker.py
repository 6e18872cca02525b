"""One worker process: reads a job directory, trains or predicts together with its peers, leaves results there.

python -m skytune.training.worker JOBDIR            one process
python -m skytune.training.worker --standby cpu     the same; its input says which job: `{"job": FOLDER, "env": {}}`
python -m torch.distributed.run --nproc-per-node 2 -m skytune.training.worker JOBDIR
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..common.files import is_disk_full
from ..common.processes import alive
from ..config import UserError
from ..config.folders import keep_compiled
from ..config.scrubbing import guard_logs, scrub
from ..config.targets import import_plugins
from ..job import JobDir, RankError

log = logging.getLogger("skytune")


def main(argv: list[str] | None = None) -> int:
    """Run the job named on the command line; return the exit code (0 done, 1 failed)."""
    started = time.time()
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["--standby"]:
        arguments, started = [_stand_by(*arguments[1:])], time.time()
    if len(arguments) != 1:
        print("usage: python -m skytune.training.worker JOBDIR", file=sys.stderr)
        return 2
    job = JobDir(arguments[0])
    try:
        job.existing()  # before anything is written into a folder that may be a slip of the pen
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 1
    rank = int(os.environ.get("RANK", "0"))
    _watch_launcher()
    gc.disable()  # until everything is imported (`session.run_job`): a million objects and no garbage
    guard_logs()
    try:
        _log_to(job.logs / f"rank-{rank}.log", rank)
        _work(job, float(os.environ.get("SKYTUNE_STARTED", started)))
    except BaseException as error:
        _report(job, rank, error)
        # Peers may wait in a collective operation for this process; an ordinary exit would wait for them in turn.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    return 0


def _stand_by(device: str) -> str:
    """Import what a job needs on a device, then wait for one; return its folder, with its environment in place."""
    gc.disable()
    with contextlib.suppress(Exception):  # told by the job, which tries again
        keep_compiled()
        import_libraries()
        for module in (*LATER, *(COMPILERS if device == "cuda" else ())):
            if not select.select([sys.stdin], [], [], 0)[0]:
                importlib.import_module(module)
    line = sys.stdin.readline()
    if not line:  # whoever started this is gone
        os._exit(0)
    order = json.loads(line)
    os.environ.clear()
    os.environ.update(order["env"])
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    return str(order["job"])


def _work(jobdir: JobDir, started: float) -> None:
    job = jobdir.job
    # At the end: a file of the user's that is named like a library must not hide it.
    sys.path.extend(path for path in job.paths if path not in sys.path)
    import_plugins(job.config.plugins)
    keep_compiled()
    import_libraries()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        import torch

        torch.set_num_threads(int(threads))
    if job.kind == "predict_files":
        from .file_prediction import run_job
    else:
        from .trainer import run_job

    asked = os.environ.get("SKYTUNE_WORLD_SIZE")
    run_job(jobdir, job, started=started, asked=int(asked) if asked else None)


def import_libraries() -> None:
    """Import what every job needs; no device is opened, and no thread started, so that a process may fork after it."""
    _silence_libraries()
    _leave_out_libraries()
    from . import trainer  # noqa: F401


def _silence_libraries() -> None:
    """Progress bars and advice of libraries are not ours to show; errors still come as exceptions."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)


LATER = (
    "transformers.modeling_utils",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
    "sklearn.metrics",
)
"""What a job imports when it opens its model and scores."""

COMPILERS = (
    "triton",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.lowering",
    "torch._inductor.compile_fx",
)
"""What it imports to compile its steps, on a GPU, a second of it at a time."""

LEFT_OUT = {
    "transformers.generation.candidate_generator": "is_sklearn_available",
    "transformers.loss.loss_utils": "is_scipy_available",
    "transformers.trainer_utils": "is_peft_available",
}
"""Modules of transformers that every model imports, and what they ask before they import a large library."""


def _leave_out_libraries() -> None:
    """Transformers imports scikit-learn, pandas and SciPy, where they are installed, for assisted text generation with
    its confidence threshold and for boxes around objects, and PEFT (which imports bitsandbytes, and that torch's
    compiler) for its Trainer, whose schedules alone are ours: a third of a worker's imports, for what no training of
    ours needs. Whoever else asks for them finds them."""
    for module, question in LEFT_OUT.items():
        try:
            from transformers import utils

            found = getattr(utils, question)
        except (ImportError, AttributeError):  # another version: slower, not worse
            return
        setattr(utils, question, lambda: False)
        try:
            imported = importlib.import_module(module)
            if question == "is_peft_available":
                setattr(imported, question, partial(_import_peft, imported, found))
        except ImportError:
            pass
        finally:
            setattr(utils, question, found)


def _import_peft(module: Any, found: Callable[[], bool]) -> bool:
    """Answer a module that was imported without PEFT whether it is there, and give it what it had imported then."""
    if found():
        import peft

        module.PeftModel, module.PeftMixedModel = peft.PeftModel, peft.PeftMixedModel
    return found()


class LogFile(logging.FileHandler):
    """A log file on a disk that may be full for a while: what is said then is written later."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing of a full disk; all else as usual."""
        error = sys.exc_info()[1]
        if not is_disk_full(error):
            super().handleError(record)


def _log_to(path: Path, rank: int) -> None:
    """Every rank writes its own log; rank 0 also speaks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = LogFile(path, mode="a", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.addHandler(file)
    log.propagate = False
    if rank == 0:
        screen = logging.StreamHandler(sys.stdout)
        screen.setFormatter(logging.Formatter("%(message)s"))
        screen.addFilter(lambda record: not getattr(record, "file_only", False))  # what a live bar shows anyway
        log.addHandler(screen)
    else:
        # What libraries print here (a crash's C++ trace included) belongs into this rank's log, not on the screen.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)


def _report(job: JobDir, rank: int, error: BaseException) -> None:
    """Leave the reason in the rank's log and in its error file, for the launcher to show."""
    trace = scrub(traceback.format_exc())
    user = isinstance(error, UserError)
    message = scrub(str(error)) or type(error).__name__
    # A launcher tells the error itself, out of the error file or the log: once is enough on the screen.
    log.error("%s", message if user else trace, extra={"file_only": "SKYTUNE_LAUNCHER_PID" in os.environ})
    record = RankError(type=type(error).__name__, message=message, user=user, traceback=trace, time=time.time())
    try:
        job.write_error(rank, record)
    except OSError as failed:
        log.error("cannot write the error file: %s", failed)


def _watch_launcher() -> None:
    """End this process when the launcher or torchrun's agent is gone: nobody would collect its results or stop it."""
    launcher, parent = os.environ.get("SKYTUNE_LAUNCHER_PID"), os.getppid()
    if not launcher:
        return

    def watch() -> None:
        while alive(int(launcher)) and os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="launcher-watch").start()


if __name__ == "__main__":
    sys.exit(main())
