"""A callback that takes its time, so that a job can be stopped in its middle."""

import time
from typing import Any


class Wait:
    """Sleeps at the end of every step."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, run: Any) -> None:
        time.sleep(self.seconds)
