"""The dated log of the soak on the stand-in for AWS: every test marked soak, and what each of ten launches took."""

import fcntl
import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

LOG = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "aws_soak.md"
HEADER = """# Real SkyPilot on the stand-in for AWS: the log of `make soak`

Every session that ran a test of `tests/aws` which is marked `soak` appends an entry: test by test how it ended and what
it took, its own preparations included. After each of them no machine may run that no test asked for. `launch N` are
the ten launches in a row of `test_soak.py`, which ask whether the stand-in itself is to be trusted: a failure there is
the stand-in's. Seconds are those of a machine that may have had other work (its load is named).
"""


def append(lines: list[str]) -> None:
    """Append an entry with these lines."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    entry = [
        f"\n## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n",
        *lines,
        f"- machine: {cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"{platform.system()}, Python {platform.python_version()}, SkyPilot {version('skypilot')}, "
        f"moto {version('moto')}",
    ]
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.tell() == 0:
            file.write(HEADER)
        file.write("\n".join(entry) + "\n")
