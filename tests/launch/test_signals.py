"""A run is told to end by a signal, or by whoever puts the file there that the workers look for."""

import signal
import time
from pathlib import Path

import pytest

from skytune.config import Preempted
from skytune.launch.signals import Stopping


def test_the_file_is_as_good_as_a_signal(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()  # of an earlier start
    with Stopping(flag, grace_seconds=0.2) as stopping:
        stopping.check()
        assert stopping.asked_by is None and not flag.exists()
        flag.touch()
        stopping.check()
        assert stopping.asked_by == signal.SIGTERM
        time.sleep(0.25)
        with pytest.raises(Preempted, match="stopped without saving"):
            stopping.check()
    assert not flag.exists()
