"""The launcher as the rest of the project sees it."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...config import ComputeConfig, RunConfig, UserError
from ...distributed.preemption import FLAG_FILE
from ...job import JobDir
from ...pricing.cost import Attempt, Cost
from ..signals import Stopping
from . import scripts
from .cost_estimate import remember
from .machine import STORE, VARIABLE, merged
from .messages import require
from .monitor import Exchange
from .recovery import RecoveryLoop
from .s3_transfer import S3Transfer
from .secret_cleanup import forget, values_of

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 60.0
"""What a stop takes on top of `launch.timeouts.stop` where the workers are on other machines."""


class SkyPilotLauncher:
    """Brings machines up with SkyPilot for one job."""

    def __init__(self, stack: Mapping[str, Any] | None = None) -> None:
        """Begin.

        Args:
            stack: what the stack was registered with: keys of `compute`, and `store`.
        """
        self.stack = dict(stack or {})
        self.store: str | None = self.stack.pop(STORE, None)

    @classmethod
    def of_environment(cls) -> "SkyPilotLauncher | None":
        """Return the launcher that a step operator asks for; None where there is none."""
        said = os.environ.get(VARIABLE)
        return cls(json.loads(said)) if said else None

    def completed(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the stack's store where it names none, and say so: what lies there outlives the
        machines, so that the next ones go on from it."""
        if config.checkpoint.store is not None or self.store is None:
            return config
        log.info("checkpoints go to the stack's store, %s (checkpoint.store= names another)", self.store)
        return replace(config, checkpoint=replace(config.checkpoint, store=self.store))

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`.

        Raises:
            Preempted: a signal stopped the run, or machines were taken away more often than it may begin again.
            UserError: no machine could be had, one is too dear, credentials; or one was left running, with its name.
        """
        require()
        config = job.job.config
        compute = merged(self.stack, compute)
        _check_store_remote(config)
        passing = S3Transfer.of(config, job.job.run_key)
        shutil.rmtree(job.root / "upload", ignore_errors=True)
        job.logs.mkdir(parents=True, exist_ok=True)
        with Stopping(job.root / FLAG_FILE, config.launch.timeouts.stop + STOP_GRACE_SECONDS) as stopping:
            running = RecoveryLoop(job, config, compute, stopping, Exchange(job, passing))
            try:
                running.run()
            finally:
                shutil.rmtree(job.root / "upload", ignore_errors=True)
                # Again: a launch that was given up is done with only now.
                ended = "" if config.launch.detach else running.name
                forget(values_of(scripts.secrets(config)), ended=ended)
                if running.made:
                    _tell_cost(job, running.made)


def _check_store_remote(config: RunConfig) -> None:
    store = config.checkpoint.store
    if store and ("://" not in store or store.startswith(("file://", "memory://"))):
        raise UserError(
            f"checkpoint.store={store}: is on this machine, the workers run on others; give a URL "
            "(s3://bucket/folder), or null, which copies the checkpoints here while training runs"
        )


def _tell_cost(job: JobDir, attempts: list[Attempt]) -> None:
    """Say what the machines took, and add it to the job's result: the step hands it to report and metadata."""
    cost = Cost(attempts)
    log.info("cost: %s%s", cost.line(), " so far" if attempts[-1].ended == "detached" else "")
    result, found = job.read_result(), cost.record()
    if result is not None:
        remember(job.job, result, attempts)
        phases = {name: value for name, value in found["phases"].items() if name != "job_s"}
        spent = {"cost_usd": "n/a" if found["usd"] is None else found["usd"], "machine_attempts": len(attempts)}
        job.write_result({**result, **spent, "cost": found, "phases": {**phases, **(result.get("phases") or {})}})
    (job.outputs / "cost.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
