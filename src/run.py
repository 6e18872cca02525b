"""The command: compose a configuration, choose a pipeline, run it, say where to look.

python src/run.py --help
"""

import sys
from pathlib import Path

import skytune  # noqa: F401  found beside this file, whatever else is installed

SOURCE = Path(__file__).resolve().parent
# From here on the folder of this file and the current one come last: a file of the user's that is named like a
# library must not hide it, one with another name is found.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != SOURCE] + [str(SOURCE), str(Path.cwd())]

from skytune.cli.main import main  # noqa: E402
from skytune.common.output import make_lasting  # noqa: E402

if __name__ == "__main__":
    make_lasting()
    sys.exit(main(sys.argv[1:]))
