"""What the container starts on every machine; it imports nothing of ours, since nothing is installed yet.

    python3 /opt/ml/input/data/skytune/entry.py

It unpacks what was sent in scratch space, installs the pins, and runs `node`. SIGTERM is handed on; while pip installs,
nothing is trained yet, and the job ends at once. Why it failed stands in `/opt/ml/output/failure`: SageMaker shows it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

ROOT = Path(os.environ.get("SKYTUNE_OPT_ML", "/opt/ml"))
SENT = "sent.zip"
"""All that is sent, beside this file."""

SCRATCH = Path(os.environ.get("SKYTUNE_SCRATCH", "/tmp/skytune"))
"""On the job's own volume; `/opt/ml/model` and the like are uploaded by SageMaker."""

PIP = (
    "-m pip install --quiet --disable-pip-version-check --root-user-action ignore "
    "--constraint constraints.txt --requirement requirements.txt"
)


def main() -> int:
    """Run this machine's part of the job; return the exit code."""
    shutil.rmtree(SCRATCH, ignore_errors=True)  # an interrupted start, or an earlier job on a machine that was kept
    shutil.unpack_archive(ROOT / "input" / "data" / "skytune" / SENT, SCRATCH)
    environment = {**os.environ, "SKYTUNE_BEGAN": repr(time.time())}
    code, lines = run(*PIP.split(), environment=environment)
    if code == 0:
        start = "code/skytune/launch/bootstrap.py"
        code, lines = run(start, "skytune.launch.sagemaker.node", str(SCRATCH / "job"), environment=environment)
    if code:
        failure = ROOT / "output" / "failure"
        failure.parent.mkdir(parents=True, exist_ok=True)
        last = next((line for line in reversed(lines) if line.strip("=- ")), "")
        failure.write_text(last[-1000:], encoding="utf-8")
    return code


def run(*words: str, environment: dict[str, str]) -> "tuple[int, list[str]]":
    """Run Python in scratch space, show what it says, hand SIGTERM on; return its exit code and its last lines."""
    last: deque[str] = deque(maxlen=15)
    child = subprocess.Popen(
        [sys.executable, *words], cwd=SCRATCH, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    assert child.stdout is not None
    for line in child.stdout:
        text = line.decode(errors="replace").rstrip("\n")
        print(text, flush=True)
        last.append(text)
    code = child.wait()
    return (code if code >= 0 else 128 - code), list(last)


if __name__ == "__main__":
    sys.exit(main())
