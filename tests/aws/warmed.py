"""Commands inside the farm that start warm: Python with the libraries imported already (farm/warm.py, preload.py)."""

import os
import subprocess
import sys
from pathlib import Path

from farm import Farm

HERE = Path(__file__).parent
ASK = HERE / "farm" / "ask.py"

# The child in which a step runs is told from others by its words; what is known by its command line starts as ever.
_PYTHON = """\
#!/bin/sh
case "$*" in
    *" skytune.steps.subprocess_entrypoint "*) exec {real} -I -S {ask} {socket} "$0" {real} "$@" ;;
esac
exec {real} "$@"
"""

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
    socket, script, log = place / "warm.sock", place / "python", farm.folder / "warm.log"
    script.write_text(_PYTHON.format(real=sys.executable, ask=ASK, socket=socket))
    script.chmod(0o755)
    with log.open("ab") as output:
        # It ends with the farm.
        server = farm.popen(
            [sys.executable, HERE / "farm" / "warm.py", "--here", socket, "preload"],
            env=farm.environment(PYTHONPATH=str(HERE), HF_HUB_OFFLINE="1"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    farm.wait(lambda: socket.exists() or server.poll() is not None, seconds=120)
    assert server.poll() is None, log.read_text()
    return [sys.executable, "-I", "-S", str(ASK), str(socket), str(script), sys.executable]
