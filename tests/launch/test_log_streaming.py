"""What a child prints until it ends, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from skytune.launch.log_streaming import Follower, pump

CODES = {
    "talks": "import sys; print('a'); print('b', file=sys.stderr); sys.stdout.write('end'); sys.exit(3)",
    "silent": "import os, time; print('a', flush=True); os.close(1); os.close(2); time.sleep(0.7); os._exit(3)",
    "outlived": "import subprocess, sys; print('a', flush=True); subprocess.Popen(['sleep', '30']); sys.exit(3)",
}


@pytest.mark.parametrize("how", CODES)
def test_a_child_is_read_to_its_end(how: str, tmp_path: Path, capfd: Any) -> None:
    """Also one that closes its output long before it ends, and one whose own child keeps it open."""
    child = subprocess.Popen(
        [sys.executable, "-c", CODES[how]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    checks, tail = [], deque[str]()
    with (tmp_path / "record").open("wb", buffering=0) as record:
        code = pump(
            child, record, tail, Follower(tmp_path / "log"), lambda: checks.append(1), tmp_path / "result.json", 5.0
        )
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    assert code == 3 and checks
    assert sorted(tail) == {"talks": ["a", "b", "end"]}.get(how, ["a"])
    assert (tmp_path / "record").read_bytes().startswith(b"a\n") or how == "talks"
    assert capfd.readouterr().out.startswith("a\n")
    child.stdout.close()  # type: ignore[union-attr]
    child.stderr.close()  # type: ignore[union-attr]


def test_a_child_that_closed_its_output_is_still_watched(tmp_path: Path) -> None:
    closing = "import os, time; os.close(1); os.close(2); time.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", closing], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    class StopRequested(Exception):
        pass

    looks = iter(range(4))

    def check() -> None:
        if next(looks, None) is None:
            raise StopRequested

    with (tmp_path / "record").open("wb", buffering=0) as record, pytest.raises(StopRequested):
        pump(child, record, deque(), Follower(tmp_path / "log"), check, tmp_path / "result.json", 5.0)
    child.kill()
    child.communicate()
