"""Workers without the pipeline: this machine's part of a run, or a job directory, started by hand.

python -m skytune.training JOBDIR                    one worker on a job directory
accelerate launch -m skytune.training JOBDIR         several, by Accelerate; or with torchrun -m
python -m skytune.training join ADDRESS[:PORT]       this machine joins a run as another node
"""

import importlib
import sys


def main(words: list[str]) -> int:
    """Run the words of the command line; return the exit code."""
    if words[:1] == ["join"]:
        # By name: the room of launchers is above this one, which does not import it.
        return int(importlib.import_module("skytune.launch.join").main(words[1:]))
    from .worker import main as work

    return work(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
