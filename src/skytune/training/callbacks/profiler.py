"""A look at single operations: torch's profiler over a few steps (`debug=profile`)."""

import logging
from typing import Any

from .base import Callback, Run

log = logging.getLogger(__name__)


class Profiler(Callback):
    """Records `debug.profile_steps` steps after two others; leaves a trace for chrome://tracing and a table."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.profile: Any = None

    def on_run_start(self, run: Run) -> None:
        """Start waiting."""
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if run.world.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=self.steps, repeat=1)
        self.profile = torch.profiler.profile(activities=activities, schedule=schedule)
        self.profile.start()

    def on_step_end(self, run: Run) -> None:
        """Count a step."""
        self.profile.step()

    def on_run_end(self, run: Run) -> None:
        """Write what was recorded."""
        self.profile.stop()
        if not run.world.main:
            return
        folder = run.job.outputs / "profile"
        folder.mkdir(parents=True, exist_ok=True)
        self.profile.export_chrome_trace(str(folder / "trace.json"))
        key = "self_device_time_total" if run.world.device.type == "cuda" else "self_cpu_time_total"
        table = self.profile.key_averages().table(sort_by=key, row_limit=20)
        (folder / "operations.txt").write_text(table, encoding="utf-8")
        log.info("profile: %s", folder)
