"""Runs a module as `python -m` does, with this package found from here and its folder last on the path.

    python /somewhere/skytune/launch/bootstrap.py skytune.training.worker JOBDIR

The folder that holds the package (`src` in a checkout) may hold the user's files too. One that is named like a
library (`evaluate.py`) would hide it if the folder came first, as it does with `PYTHONPATH`; so it is appended here
instead. The launcher sets `PYTHONSAFEPATH`, so this file's own folder is not on the path.
"""

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the module named first on the command line with the words after it."""
    source = str(Path(__file__).resolve().parents[2])
    others = [entry for entry in sys.path if entry != source]
    sys.path = [source, *others]
    import skytune  # noqa: F401  this very package, whichever else is installed

    sys.path = [*others, source]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
