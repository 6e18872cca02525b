"""Callbacks that tests put into workers to make their life harder: slow steps, a halt, and a disk that others fill."""

import os
import time
from pathlib import Path
from typing import Any


class Slow:
    """Sleeps after every step, so that something can happen meanwhile."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds = seconds

    def on_step_end(self, run: Any) -> None:
        time.sleep(self.seconds)


class Hold:
    """Stands still after some steps until a file is there: `SKYTUNE_TEST_HOLD` is `STEP=FILE,STEP=FILE`."""

    def on_step_end(self, run: Any) -> None:
        places = dict(each.split("=", 1) for each in os.environ.get("SKYTUNE_TEST_HOLD", "").split(",") if each)
        while (place := places.get(str(run.step))) and not Path(place).exists():
            time.sleep(0.02)


class Stranger:
    """Somebody who fills the disk after one step, and after another takes away what filled it."""

    def __init__(self, path: str, fill: int, clear: int) -> None:
        self.path, self.fill, self.clear = Path(path), fill, clear

    def on_step_end(self, run: Any) -> None:
        if run.step == self.fill:
            with self.path.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    os.fsync(file.fileno())
        if run.step == self.clear:
            self.path.unlink(missing_ok=True)


class Impatient:
    """Counts the Hub as away after half a second: 5 s are the least that the configuration allows."""

    def __init__(self) -> None:
        from skytune.checkpoint.backends import hub

        hub._patience = 0.5

    def on_run_start(self, run: Any) -> None:
        pass


class Clogged:
    """On one process the first file of a checkpoint takes long to write."""

    def __init__(self, rank: int, seconds: float) -> None:
        self.rank, self.seconds = rank, seconds

    def on_run_start(self, run: Any) -> None:
        if run.world.rank != self.rank:
            return
        from skytune.checkpoint.store import Stage

        put, seconds = Stage.put, self.seconds

        def slow(stage: Any, name: str, source: Any) -> Any:
            Stage.put = put  # type: ignore[method-assign]
            time.sleep(seconds)
            return put(stage, name, source)

        Stage.put = slow  # type: ignore[method-assign]
