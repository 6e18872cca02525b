"""SageMaker for a stack: how its jobs are reached, what of them runs now, and the end of all of it."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..launch.sagemaker import Cloud, SageMakerLauncher, TrainingJobs
from .account import Account, connect, spoken
from .names import Names
from .reporting import Done

CLOUD = Cloud(connect=connect, spoken=spoken)

OURS = "skytune-"
"""How the names of our jobs begin."""


def launcher(stack: Mapping[str, Any] | None = None) -> SageMakerLauncher:
    """Return the launcher of training jobs; see `SageMakerLauncher`."""
    return SageMakerLauncher(CLOUD, stack)


def jobs_of(account: Account, names: Names) -> list[str]:
    """Return the names of the stack's jobs that have not ended."""
    jobs = TrainingJobs(CLOUD, account, account.region)
    return [name for name, _ in jobs.running(OURS) if _role(account, name) == names.sagemaker_role_arn]


def remove(account: Account, names: Names) -> Iterable[Done]:
    """Stop the stack's jobs, wait for their end, and give back machines that are kept for more."""
    jobs = TrainingJobs(CLOUD, account, account.region)
    for name in jobs_of(account, names):
        gone = jobs.end(name)
        jobs.forget(name)
        yield Done("removed", "job", name, "stopped" if gone else "is stopping: it ends within minutes")
    for name in jobs.pooled(OURS):
        if _role(account, name) == names.sagemaker_role_arn:
            jobs.give_back(name)
            yield Done("removed", "warm pool", name, "its machines are given back")


def in_use(account: Account, instance_type: str, spot: bool) -> int:
    """Return how many machines of a kind the account's training jobs have now, in the region."""
    client = account.client("sagemaker")
    count = 0
    for name, _ in TrainingJobs(CLOUD, account, account.region).running(""):
        about = client.describe_training_job(TrainingJobName=name)
        kind = about["ResourceConfig"]
        if kind.get("InstanceType") == instance_type and bool(about.get("EnableManagedSpotTraining")) == spot:
            count += int(kind.get("InstanceCount") or 1)
    return count


def _role(account: Account, name: str) -> str:
    return str(account.client("sagemaker").describe_training_job(TrainingJobName=name)["RoleArn"])
