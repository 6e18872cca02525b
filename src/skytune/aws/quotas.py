"""How many vCPUs the account may run at once, of which families of instances, and how many it runs now."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .account import Account

ON_DEMAND = re.compile(r"^Running On-Demand (.+?)(?: instances)?$")
SPOT = re.compile(r"^All (.+?) Spot Instance Requests$")


@dataclass(frozen=True)
class Quota:
    """One quota of EC2, in vCPUs."""

    code: str
    name: str
    spot: bool
    families: frozenset[str]
    """Small letters: of instance families (`g`), or of one generation (`p5`)."""

    vcpus: int


def quotas(account: Account) -> list[Quota]:
    """Return EC2's quotas for vCPUs, as the account has them in its region.

    They are told apart by name, because AWS gives new families and generations quotas of their own.
    """
    found = []
    pages = account.client("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode="ec2")
    for page in pages:
        for each in page["Quotas"]:
            for pattern, spot in ((ON_DEMAND, False), (SPOT, True)):
                match = pattern.match(each["QuotaName"])
                if match:
                    found.append(Quota(each["QuotaCode"], match[1], spot, _families(match[1]), int(each["Value"])))
    return found


def quota_of(instance_type: str, spot: bool, found: Iterable[Quota]) -> Quota | None:
    """Return the quota that an instance type counts against; None if none is known."""
    letters = re.match(r"[a-z]+(?=\d|-)", instance_type.split(".")[0])
    generation = re.match(r"[a-z]+\d+", instance_type)
    for key in (generation[0] if generation else "", letters[0] if letters else ""):
        for each in found:
            if key and each.spot == spot and key in each.families:
                return each
    return None


def in_use(account: Account) -> list[tuple[str, bool, int]]:
    """Return (instance type, spot, vCPUs) of every machine that runs in the region."""
    ec2 = account.client("ec2")
    filters = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    there = [each for page in pages for group in page["Reservations"] for each in group["Instances"]]
    # Quotas count what a type has, also where fewer cores were switched on.
    names = sorted({each["InstanceType"] for each in there})
    sizes = ec2.describe_instance_types(InstanceTypes=names)["InstanceTypes"] if names else []
    vcpus = {each["InstanceType"]: int(each["VCpuInfo"]["DefaultVCpus"]) for each in sizes}
    return [
        (each["InstanceType"], each.get("InstanceLifecycle") == "spot", vcpus.get(each["InstanceType"], 0))
        for each in there
    ]


def used(quota: Quota, found: Iterable[Quota], running: Iterable[tuple[str, bool, int]]) -> int:
    """Return how many vCPUs of a quota are in use."""
    known = list(found)
    return sum(vcpus for name, spot, vcpus in running if quota_of(name, spot, known) == quota)


def raised(account: Account, service: str, code: str, value: int) -> str:
    """Return the ways out of a quota that is too small: the command that asks AWS for more, and others."""
    return (
        f"`aws service-quotas request-service-quota-increase --service-code {service} --quota-code {code} "
        f"--desired-value {value} --region {account.region}`, a smaller machine, or another region"
    )


def _families(name: str) -> frozenset[str]:
    """Return the families of e.g. `Standard (A, C, D)`, `G and VT`, `P4, P3 and P2`."""
    inside = re.search(r"\((.+?)\)", name)
    words = re.split(r",\s*|\s+and\s+", inside[1] if inside else name)
    return frozenset(word.strip().lower() for word in words)
