"""Workers without the pipeline: this machine's part of a run, or a job directory, started by hand.

python -m skytune.training JOBDIR                    one worker on a job directory
accelerate launch -m skytune.training JOBDIR         several, by Accelerate; or with torchrun -m
python -m skytune.training join ADDRESS[:PORT]       this machine joins a run as another node
"""

import importlib
import os
import sys

from ..config import UserError


def main(words: list[str]) -> int:
    """Run the words of the command line; return the exit code."""
    if words[:1] == ["join"]:
        # By name: the room of launchers is above this one, which does not import it.
        return int(importlib.import_module("skytune.launch.join").main(words[1:]))
    if len(words) == 1:
        _promise(words[0])
    from .worker import main as work

    return work(words)


def _promise(folder: str) -> None:
    """Have as many processes be started as the job asks for: Accelerate starts one on a CPU, whatever it is told."""
    from ..job import JobDir

    try:
        asked = JobDir(folder).read_job().config.launch.num_processes
    except UserError:
        return  # the worker says it better
    if asked != "auto":
        os.environ.setdefault("SKYTUNE_WORLD_SIZE", str(asked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
