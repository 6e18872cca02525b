"""The preflight: would a run on this stack get its machine now, and at what price? Nothing is started or changed."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..common.background import Late, Pending
from ..common.findings import Finding, Level
from ..config import UserError
from ..config.schema.sagemaker import PREFIX
from ..pricing.cost import dollars
from ..pricing.prices import aws_price, spot_prices
from . import bucket, catalog, images, role, sagemaker, skypilot
from .account import Account, Check, ask, spoken
from .names import Names
from .quotas import Quota, in_use, quota_of, quotas, raised, used

LEAST_SECONDS = 5.0
"""How long AWS is given, however long this machine took to begin."""

PRICE_SECONDS = 4.0
"""How long AWS's price list may take, before SkyPilot's is read instead."""

NONE_ASKED = ("m6i.2xlarge", "g5.xlarge", "p4d.24xlarge")
"""Whose quotas are shown when no machine is asked for: one of each large family."""


class Skipped(Exception):
    """There is no machine to look at; another line says why."""


class MachineRequest:
    """The machine that is asked for, found out once: several checks need it."""

    def __init__(self, account: Account, machine: Mapping[str, Any]) -> None:
        self.nodes = int(machine.get("num_nodes") or 1)
        self.spot = bool(machine.get("use_spot"))
        named = machine.get("instance_type")
        self.instance_type = str(named or catalog.choose(machine, account.region, catalog.fetch()).instance_type)
        kinds = account.client("ec2").describe_instance_types
        found = ask(kinds, "InvalidInstanceType", "InvalidParameterValue", InstanceTypes=[self.instance_type])
        if found is None:
            raise UserError(f"{self.instance_type}: EC2 has no such instance type in {account.region}")
        about = found["InstanceTypes"][0]
        self.vcpus = int(about["VCpuInfo"]["DefaultVCpus"])
        gpus = about.get("GpuInfo", {}).get("Gpus", [])
        self.gpus = ", ".join(f"{gpu['Count']} x {gpu['Name']}" for gpu in gpus)

    def __str__(self) -> str:
        return f"{self.nodes} x {self.instance_type}" if self.nodes > 1 else self.instance_type


def examine(account: Account, names: Names, machine: Mapping[str, Any], asked: bool, until: float) -> Iterator[Finding]:
    """Yield every finding, in the order in which a person should read them; AWS is asked for all of it at once.

    Args:
        machine: keys of `compute`, as the stack has them or the command asks for.
        asked: whether a machine is asked for at all.
        until: moment of `time.monotonic()` after which nothing is waited for.
    """
    for service in ("ec2", "s3", "iam", "ecr", "service-quotas"):
        account.client(service)  # here: made in threads they would wait for each other
    yield Finding(Level.ok, "identity", f"account {account.id}, {account.arn.split(':', 5)[5]}")
    jobs = str(machine.get("instance_type")).startswith(PREFIX)
    checks = sagemaker.checks(account, machine) if jobs else _of_ec2(account, machine, asked, until)
    checks += [
        ("bucket", lambda: [store(account, names)]),
        ("role", lambda: [role.check(account, names, jobs=jobs)]),
        *([] if jobs else [("skypilot", lambda: [skypilot.versions()])]),
    ]
    for name, answer in [(name, Pending(check)) for name, check in checks]:
        try:
            with spoken(names.stack):
                yield from answer.wait(seconds=until - time.monotonic())
        except Skipped:
            continue
        except Late:
            yield Finding(Level.fail, name, "no answer in time", "is AWS in reach? the same command again")
        except UserError as error:
            yield Finding(Level.fail, name, str(error))


def _of_ec2(account: Account, machine: Mapping[str, Any], asked: bool, until: float) -> list[Check]:
    """Return what is to be looked at of machines that SkyPilot would bring up."""
    wanted: Pending[MachineRequest | None] = Pending(lambda: MachineRequest(account, machine) if asked else None)
    known = Pending(lambda: (quotas(account), in_use(account)))

    def given() -> MachineRequest | None:
        try:
            return wanted.wait(seconds=until - time.monotonic())
        except Exception as error:
            raise Skipped from error

    def image(asked: MachineRequest | None) -> Finding:
        return images.check(account, str(machine.get("image_id") or ""), bool(asked and asked.gpus))

    return [
        ("region", lambda: [region(account)]),
        ("machine", lambda: [size(wanted.wait(seconds=until - time.monotonic()))]),
        ("quota", lambda: quota(account, given(), *known.wait(seconds=until - time.monotonic()))),
        ("price", lambda: price(account, given(), machine.get("max_hourly_usd"))),
        ("image", lambda: [image(given())]),
    ]


def region(account: Account) -> Finding:
    """Is the region enabled in this account?"""
    found = account.client("ec2").describe_regions(RegionNames=[account.region], AllRegions=True)["Regions"][0]
    if found.get("OptInStatus") == "not-opted-in":
        way = "enable it in the console under Account, AWS Regions, or take another with --region"
        return Finding(Level.fail, "region", f"{account.region} is not enabled in this account", way)
    return Finding(Level.ok, "region", account.region)


def size(asked: MachineRequest | None) -> Finding:
    """Which machine would it be?"""
    if asked is None:
        return Finding(Level.ok, "machine", "none asked for: --compute 4xa10g or an instance type")
    text = f"{asked}: {asked.vcpus} vCPUs" + (f", {asked.gpus}" if asked.gpus else ", no GPU")
    return Finding(Level.ok, "machine", text + (" each" if asked.nodes > 1 else ""))


def quota(
    account: Account, asked: MachineRequest | None, known: list[Quota], running: list[tuple[str, bool, int]]
) -> list[Finding]:
    """May the account run as many vCPUs?"""
    found = []
    for spot in (False, True):
        market = "spot" if spot else "on demand"
        for name in [asked.instance_type] if asked else NONE_ASKED:
            of = quota_of(name, spot, known)
            if of is None:
                way = f"the console shows all: Service Quotas, Amazon EC2, {account.region}"
                found.append(Finding(Level.warn, "quota", f"{market}: none found that {name} counts against", way))
                continue
            taken = used(of, known, running)
            text = f"{market}: {of.vcpus} vCPUs of {of.name}, {taken} in use"
            if asked is None:
                found.append(Finding(Level.ok, "quota", text))
                continue
            need = asked.vcpus * asked.nodes
            text += f"; {asked} needs {need}"
            if taken + need <= of.vcpus:
                found.append(Finding(Level.ok, "quota", text))
            elif spot == asked.spot:
                found.append(Finding(Level.fail, "quota", text, raised(account, "ec2", of.code, taken + need)))
            else:
                found.append(Finding(Level.ok, "quota", f"{text}: not enough, but not asked for"))
    return found


def price(account: Account, asked: MachineRequest | None, limit: float | None) -> list[Finding]:
    """What does the machine cost now, and where is it cheapest?"""
    if asked is None:
        return []
    found = []
    full, source = _full_price(account, asked.instance_type)
    market = spot_prices(account.client("ec2"), asked.instance_type)
    if full is None:
        found.append(Finding(Level.warn, "price", f"{asked}: no price on demand found in {account.region}"))
    else:
        text = f"{asked}, on demand: {dollars(full * asked.nodes)} an hour in every zone of {account.region}{source}"
        found.append(Finding(Level.ok, "price", text))
    if market:
        others = ", ".join(f"{dollars(usd * asked.nodes)} {zone}" for usd, zone in market[1:4])
        text = f"{asked}, spot: {dollars(market[0][0] * asked.nodes)} an hour in {market[0][1]}, the cheapest zone"
        found.append(Finding(Level.ok, "price", text + (f" ({others})" if others else "")))
    elif asked.spot:
        text = f"{asked}: there is no spot market in {account.region}"
        found.append(Finding(Level.fail, "price", text, "another region, another machine, or use_spot=false"))
    now = market[0][0] if asked.spot and market else full
    if limit is not None and now is not None and now * asked.nodes > limit:
        text = f"{dollars(now * asked.nodes)} an hour is more than max_hourly_usd={limit:g}"
        found.append(Finding(Level.fail, "price", text, "a smaller machine, --spot, or a higher limit"))
    return found


def store(account: Account, names: Names) -> Finding:
    """Can the bucket be reached, and does it lie where the machines are?"""
    place, way = bucket.region_of(account, names.bucket), f"`python src/stack.py register {names.stack}` makes it"
    if place is None:
        return Finding(Level.fail, "bucket", f"there is no s3://{names.bucket}", way)
    if place != account.region:
        text = f"s3://{names.bucket} lies in {place}, the machines in {account.region}"
        return Finding(Level.fail, "bucket", text, f"--region {place}, or register the stack with another bucket")
    account.client("s3").list_objects_v2(Bucket=names.bucket, MaxKeys=1)
    return Finding(Level.ok, "bucket", f"s3://{names.bucket} answers ({place})")


def _full_price(account: Account, instance_type: str) -> tuple[float | None, str]:
    """Return the price on demand and, where it is not AWS's own, the source."""
    asked = Pending(lambda: aws_price(instance_type, False, account.region, account.client))
    try:
        found = asked.wait(seconds=PRICE_SECONDS)
    except (Late, UserError):
        found = None
    if found is not None:
        return found, ""
    # Not everybody may ask AWS for it; SkyPilot's list is a few hours old at most.
    row = catalog.find_row(instance_type, account.region, catalog.fetch())
    return (None, "") if row is None or row.price == float("inf") else (row.price, " (SkyPilot's list)")
