"""One of several worker processes is killed: the others save nothing together, and are gone within the grace."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import UserError

STUCK = '''
"""Callbacks for two ranks: rank 1 is killed after its step; rank 0 then waits where no signal handler can run."""
import ctypes
import os
import signal
import time
from pathlib import Path


class Lost:
    def __init__(self, folder, step, stuck):
        self.folder, self.step, self.stuck = Path(folder), step, stuck

    def on_run_start(self, run):
        (self.folder / f"pid-{os.getpid()}").write_text("")

    def on_step_end(self, run):
        if run.step != self.step:
            return
        if run.world.rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.stuck:  # as in a collective of NCCL's: in C, for ever, whatever signal comes
            mutex = ctypes.create_string_buffer(64)
            libc = ctypes.CDLL(None)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)
        while not list(self.folder.glob("told")):
            time.sleep(0.05)

    def on_exception(self, run):
        (self.folder / f"exception-{run.world.rank}").write_text("")
'''


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder, name = tmp_path / "modules", f"lost_{tmp_path.name.replace('-', '_')}"
    folder.mkdir()
    (folder / f"{name}.py").write_text(STUCK)
    monkeypatch.syspath_prepend(str(folder))
    return name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for peers in /proc")
def test_a_rank_that_hangs_because_its_peer_died_ends_within_the_grace(
    run_job: Any, lost: str, pids: Path, left: Callable[..., list[int]], tmp_path: Path
) -> None:
    """Torchrun sends it SIGTERM, and would wait half a minute whatever it was told; the grace is two seconds."""
    store = tmp_path / "store"
    callback = {"_target_": f"{lost}.Lost", "folder": str(pids), "step": 3, "stuck": True}
    with pytest.raises(UserError, match=r"worker process 1 failed: it was ended by SIGKILL") as caught:
        run_job(
            rows=64,
            launch={"num_processes": 2, "threads": 1, "timeouts": {"kill": 2.0}},
            max_steps=8,
            checkpoint={"store": str(store), "every_steps": 2},
            callbacks={"lost": callback},
        )
    (saved,) = store.glob("*/step-*/manifest.json")
    took = time.time() - saved.stat().st_mtime
    assert left(expected=2) == []
    assert sorted(path.parent.name for path in store.glob("*/step-*/manifest.json")) == ["step-00000002"]
    assert "Traceback" not in str(caught.value)
    (log,) = (path for path in Path(tmp_path, "skytune-home").glob("runs/*/outputs/logs/rank-0.log"))
    assert "another worker process has died" in log.read_text()
    assert took < 45  # since the save right before the death: two seconds, and whatever else the machine does
    assert not (pids / "exception-0").exists()
