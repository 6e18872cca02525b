"""Before a job on other machines: where its checkpoints go. After it: what it cost, and what is said of a stop."""

import json
import logging
from typing import Any

from ...config import Preempted, RunConfig, UserError
from ...job import JobDir
from ...pricing.cost import Attempt, Cost
from .cost_estimate import remember

log = logging.getLogger(__name__)


def check_store_remote(config: RunConfig) -> None:
    """Refuse a store that the machines of a job do not reach.

    Raises:
        UserError: it is on this machine.
    """
    store = config.checkpoint.store
    if store and ("://" not in store or store.startswith(("file://", "memory://"))):
        raise UserError(
            f"checkpoint.store={store}: is on this machine, the workers run on others; give a URL "
            "(s3://bucket/folder), or null, which copies the checkpoints here while training runs"
        )


def record_cost(job: JobDir, attempts: list[Attempt]) -> None:
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


def stopped(job: JobDir) -> Preempted:
    """Return the error of a run that was told to end: whether it could save."""
    result: dict[str, Any] = job.read_result() or {}
    if result.get("status") != "preempted":
        return Preempted("stopped without saving; the same command goes on from the last checkpoint, if there is one")
    return Preempted(f"stopped after step {result['steps']}, which is saved; the same command goes on")
