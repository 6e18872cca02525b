"""Commands inside the farm that start warm: Python with the libraries imported already (farm/warm.py, preload.py)."""

import os
import subprocess
import sys
from pathlib import Path

from farm import Farm

HERE = Path(__file__).parent

# The child in which a step runs is told from others by its words; what is known by its command line starts as ever.
_PYTHON = """\
#!/bin/sh
case "$*" in
    *" skytune.steps.child "*) exec {real} -I -S {ask} {socket} "$0" {real} "$@" ;;
esac
exec {real} "$@"
"""

# SkyPilot's server has it say who the user is, ten times a launch.
_AWS = '#!/bin/sh\nexec {real} -I -S {ask} {socket} {real} {real} {aws} "$@"\n'

_started: dict[Path, list[str]] = {}


def python(farm: Farm) -> list[str]:
    """Return the words that start a warm Python inside the farm, to which those of a program are added."""
    if os.environ.get("SKYTUNE_FARM_COLD"):
        return [sys.executable]
    if farm.folder not in _started:
        _started[farm.folder] = _start(farm)
    return _started[farm.folder]


def _start(farm: Farm) -> list[str]:
    place = Path(farm.environment()["TMPDIR"])
    socket, script, ask = place / "warm.sock", place / "python", HERE / "farm" / "ask.py"
    asks = place / "bin" / "aws"
    asks.parent.mkdir()
    aws = Path(sys.executable).with_name("aws")
    for text, path in ((_PYTHON, script), (_AWS, asks)):
        path.write_text(text.format(real=sys.executable, ask=ask, socket=socket, aws=aws))
        path.chmod(0o755)
    env = farm.environment(PYTHONPATH=str(HERE), HF_HUB_OFFLINE="1")
    with (farm.folder / "warm.log").open("ab") as log:
        # It ends with the farm.
        server = farm.popen(
            [sys.executable, HERE / "farm" / "warm.py", "--here", socket, "preload"],
            env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    farm.wait(lambda: socket.exists() or server.poll() is not None, seconds=120)
    assert server.poll() is None, (farm.folder / "warm.log").read_text()
    return [sys.executable, "-I", "-S", str(ask), str(socket), str(script), sys.executable]
