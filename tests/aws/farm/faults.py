"""What can be made to go wrong with AWS: rules that are matched against every request before moto sees it."""

import itertools
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from . import catalog

_numbers = itertools.count(1)


@dataclass
class Request:
    """A call of AWS's API, as far as rules and tests care."""

    service: str
    action: str
    region: str
    key: str
    """The access key id that signed it."""
    params: dict[str, str] = field(default_factory=dict)
    zone: str = ""
    """Where RunInstances wants its machines."""
    time: float = field(default_factory=time.time)
    status: int = 0
    error: str = ""
    """What was answered: the code of a refusal that the stand-in gave; "" where moto answered."""

    @property
    def instance_type(self) -> str:
        """The type that RunInstances asks for."""
        return self.params.get("InstanceType", "")

    @property
    def spot(self) -> bool:
        """Whether RunInstances asks for the spot market."""
        return self.params.get("InstanceMarketOptions.MarketType") == "spot"

    @property
    def count(self) -> int:
        """How many machines RunInstances asks for."""
        return int(self.params.get("MinCount", 1))


@dataclass
class Fault:
    """A rule. Patterns are shell patterns; an empty one fits everything."""

    service: str = ""
    action: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    spot: bool | None = None
    key: str = ""
    code: str = ""
    """The error's code; "" for a rule that only slows down."""
    message: str = ""
    status: int = 400
    times: int | None = None
    """How often it fires before it is spent; None for always."""
    delay_s: float = 0
    bytes_per_s: float = 0
    """How fast bodies are sent and received; 0 for as fast as can be."""
    number: int = 0

    def fits(self, request: Request) -> bool:
        """Return whether this rule is about `request`."""
        pairs = [
            (self.service, request.service),
            (self.action, request.action),
            (self.region, request.region),
            (self.zone, request.zone),
            (self.instance_type, request.instance_type),
            (self.key, request.key),
        ]
        return all(not pattern or fnmatchcase(value, pattern) for pattern, value in pairs) and (
            self.spot is None or (request.action == "RunInstances" and request.spot == self.spot)
        )


class Faults:
    """The rules that hold now, and the account's quotas."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[int, Fault] = {}
        self._quotas: dict[tuple[str, str], int] = {}
        self.boots: dict[int, dict[str, str]] = {}

    def add(self, **values: Any) -> int:
        """Add a rule; return its number."""
        rule = Fault(**values, number=next(_numbers))
        with self._lock:
            self._rules[rule.number] = rule
        return rule.number

    def break_boots(self, **values: str) -> int:
        """Have machines that fit (how: crash or silent; zone; instance_type) not come up; return the rule's number."""
        number = next(_numbers)
        self.boots[number] = values
        return number

    def remove(self, number: int) -> None:
        """Take a rule away; nothing happens if it is spent or gone."""
        with self._lock:
            self._rules.pop(number, None)
            self.boots.pop(number, None)

    def clear(self) -> list[dict[str, Any]]:
        """Take every rule away and put the quotas back; return the rules that were left."""
        with self._lock:
            left = [asdict(rule) for rule in self._rules.values()]
            self._rules.clear()
            self._quotas.clear()
            self.boots.clear()
        return left

    def firing(self, request: Request) -> list[Fault]:
        """Return the rules about `request`, counting those that fire a limited number of times."""
        with self._lock:
            fitting = [rule for rule in self._rules.values() if rule.fits(request)]
            for rule in fitting:
                if rule.times is not None:
                    rule.times -= 1
                    if rule.times <= 0:
                        del self._rules[rule.number]
        return fitting

    def boot(self, spec: dict[str, Any]) -> str:
        """Return how the machine's boot is to fail, or ""."""
        for wish in list(self.boots.values()):
            if all(fnmatchcase(spec[name], wish.get(name) or "*") for name in ("zone", "type")):
                return wish["how"]
        return ""

    def set_quota(self, region: str, family: str, spot: bool, cpus: int) -> None:
        """Allow the account so many vCPUs of a family (Standard, G, P) in a region."""
        self._quotas[region, catalog.QUOTAS[family, spot][0]] = cpus

    def quota(self, region: str, code: str) -> int:
        """Return how many vCPUs a quota allows in a region."""
        default = next(cpus for found, _, cpus in catalog.QUOTAS.values() if found == code)
        return self._quotas.get((region, code), default)

    def over_quota(self, request: Request, running: Iterable[tuple[str, bool]]) -> Fault | None:
        """Return EC2's refusal if RunInstances wants more vCPUs than are left beside what runs (type, spot)."""
        row = catalog.TYPES.get(request.instance_type)
        if row is None:
            return None
        code, _, _ = catalog.QUOTAS[row.quota, request.spot]
        limit = self.quota(request.region, code)
        others = (catalog.TYPES.get(name) for name, spot in running if spot == request.spot)
        used = sum(other.cpus for other in others if other is not None and other.quota == row.quota)
        if used + row.cpus * request.count <= limit:
            return None
        if request.spot:
            return Fault(code="MaxSpotInstanceCountExceeded", message="Max spot instance count exceeded")
        text = (
            f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance "
            "bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
        )
        return Fault(code="VcpuLimitExceeded", message=text)


def no_capacity(instance_type: str, zone: str) -> str:
    """Return the words in which EC2 says that a zone is sold out."""
    return (
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested "
        f"({zone}). Our system will be working on provisioning additional capacity."
    )
