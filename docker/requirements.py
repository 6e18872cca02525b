"""Prints the direct dependencies of extras, one a line, so that an image can install them before the code is there.

    python requirements.py train,demo
"""

import sys
import tomllib
from pathlib import Path

extras = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
for name in sys.argv[1].split(","):
    if name not in extras:
        sys.exit(f"no extra '{name}'; there are {', '.join(extras)}")
    print("\n".join(extras[name]))
