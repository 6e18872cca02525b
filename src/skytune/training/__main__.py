"""Workers without the pipeline: a job directory, started by hand.

python -m skytune.training JOBDIR                    one worker on a job directory
accelerate launch -m skytune.training JOBDIR         several, by Accelerate; or with torchrun -m
"""

import os
import sys

from ..common.exit_codes import EXIT_PREEMPTED
from ..config import UserError


def main(words: list[str]) -> int:
    """Run the words of the command line; return the exit code."""
    if len(words) == 1:
        _begin(words[0])
    from .worker import main as work

    code = work(words)
    return EXIT_PREEMPTED if not code and _alone() and _preempted(words[0]) else code


def _begin(folder: str) -> None:
    """Have as many processes be started as the job asks for: Accelerate starts one on a CPU, whatever it is told. And
    take away what an earlier run of this very folder said of its end; a launcher of ours empties the folder."""
    from ..job import JobDir

    try:
        asked = JobDir(folder).job.config.launch.num_processes
    except UserError:
        return  # the worker says it better
    if "SKYTUNE_LAUNCHER_PID" not in os.environ:
        JobDir(folder).forget(int(os.environ.get("RANK", "0")))
    if asked != "auto":
        os.environ.setdefault("SKYTUNE_WORLD_SIZE", str(asked))


def _alone() -> bool:
    """Whether this process's exit code is all that anybody sees. torchrun takes any but 0 for a failure, and may start
    the workers again on a machine that goes."""
    return not {"SKYTUNE_LAUNCHER_PID", "TORCHELASTIC_RUN_ID"} & set(os.environ)


def _preempted(folder: str) -> bool:
    from ..job import JobDir

    return (JobDir(folder).read_result() or {}).get("status") == "preempted"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
