"""The launcher as the rest of the project sees it."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ...config import ComputeConfig
from ...distributed.preemption import FLAG_FILE
from ...job import JobDir
from ..remote.attempts import RemoteLauncher
from ..remote.closing import check_store_remote
from ..remote.exchange import Exchange
from ..remote.handed_on import secrets
from ..remote.machine import merged
from ..remote.s3_transfer import S3Transfer
from ..signals import Stopping
from .kept import KeptClusters
from .messages import require
from .recovery import RecoveryLoop
from .secret_cleanup import forget, values_of

STOP_GRACE_SECONDS = 60.0
"""What a stop takes on top of `launch.timeouts.stop` where the workers are on other machines."""


class SkyPilotLauncher(RemoteLauncher):
    """Brings machines up with SkyPilot for jobs.

    Args:
        kept: clusters that stay from one job to the next; else every job has one of its own.
    """

    def __init__(self, stack: Mapping[str, Any] | None = None, kept: KeptClusters | None = None) -> None:
        super().__init__(stack)
        self.kept = kept

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`.

        Raises:
            Preempted: a signal stopped the run, or machines were taken away more often than it may begin again.
            UserError: no machine could be had, one is too dear, credentials; or one was left running, with its name.
        """
        require()
        config = job.job.config
        compute = merged(self.stack, compute)
        check_store_remote(config)
        transfer = S3Transfer.from_config(config, job.job.run_key)
        shutil.rmtree(job.root / "upload", ignore_errors=True)
        job.logs.mkdir(parents=True, exist_ok=True)
        hidden = values_of(secrets(config))
        with ExitStack() as stack:
            stopping = stack.enter_context(
                Stopping(job.root / FLAG_FILE, config.launch.timeouts.stop + STOP_GRACE_SECONDS)
            )
            kept = None
            if self.kept is not None:
                self.kept.minutes, self.kept.hidden = compute.idle_minutes_to_autostop or 10, self.kept.hidden | hidden
                kept = stack.enter_context(self.kept.take(RecoveryLoop.job_name(job.job)))
            running = RecoveryLoop(job, config, compute, stopping, Exchange(job, transfer), kept=kept)
            try:
                running.run()
            finally:
                # Again: a launch that was given up is done with only now.
                forget(hidden, ended="" if config.launch.detach or kept else running.name)
