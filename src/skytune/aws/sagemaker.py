"""SageMaker for a stack: how its jobs are reached, what of them runs now, and the end of all of it."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..common.findings import Finding, Level
from ..config import ComputeConfig, SageMakerConfig, UserError, from_dict
from ..launch.sagemaker import Cloud, SageMakerLauncher, TrainingJobs
from ..launch.sagemaker.images import check as check_machine
from ..launch.sagemaker.images import gpus_of
from ..pricing.cost import dollars
from ..pricing.prices import aws_price
from ..pricing.sagemaker import SOURCE, listed_price
from .account import Account, Check, connect, spoken
from .names import Names
from .quotas import raised
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


def checks(account: Account, machine: Mapping[str, Any]) -> list[Check]:
    """Return what is to be looked at of a run on SageMaker, beside bucket and role: machine, quota, price.

    Args:
        machine: keys of `compute`.
    """
    kind, nodes, spot = str(machine["instance_type"]), int(machine.get("num_nodes") or 1), bool(machine.get("use_spot"))
    asked = f"{nodes} x {kind}" if nodes > 1 else kind
    return [
        ("machine", lambda: [_machine(kind, asked)]),
        ("quota", lambda: [_quota(account, kind, nodes, spot)]),
        ("price", lambda: [_price(account, kind, nodes, asked, machine.get("max_hourly_usd"))]),
    ]


def _machine(kind: str, asked: str) -> Finding:
    check_machine(from_dict(ComputeConfig, {"instance_type": kind}, "compute"), SageMakerConfig())
    gpus = gpus_of(kind)
    return Finding(Level.ok, "machine", f"{asked}: a training job of SageMaker, {gpus or 'no'} GPUs each")


def _quota(account: Account, kind: str, nodes: int, spot: bool) -> Finding:
    """May the account have so many machines in training jobs?"""
    name = f"{kind} for {'spot ' if spot else ''}training job usage"
    pages = account.client("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode="sagemaker")
    found = next((each for page in pages for each in page["Quotas"] if each["QuotaName"] == name), None)
    if found is None:
        way = f"the console shows all: Service Quotas, Amazon SageMaker, {account.region}"
        return Finding(Level.warn, "quota", f"none found that is called '{name}'", way)
    most, used = int(found["Value"]), in_use(account, kind, spot)
    text = f"'{name}': {most}, {used} in use, {nodes} needed"
    if used + nodes <= most:
        return Finding(Level.ok, "quota", text)
    way = raised(account, "sagemaker", found["QuotaCode"], used + nodes)
    return Finding(Level.fail, "quota", text, way)


def _price(account: Account, kind: str, nodes: int, asked: str, limit: float | None) -> Finding:
    try:
        price, source = aws_price(kind, False, account.region, account.client), ""
    except UserError:  # not everybody may ask AWS for it
        price, source = None, ""
    if price is None:
        price, source = listed_price(kind, account.region), f" ({SOURCE})"
    if price is None:
        way = "sagemaker.price_per_hour= says it, for the report"
        return Finding(Level.warn, "price", f"{asked}: none is known in {account.region}", way)
    hourly = nodes * price
    text = f"{asked}: {dollars(hourly)} an hour at the full price{source}"
    if limit is not None and hourly > limit:
        return Finding(Level.fail, "price", f"{text}, more than max_hourly_usd={limit:g}", "a smaller machine")
    return Finding(Level.ok, "price", text)
