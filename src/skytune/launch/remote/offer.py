"""The machine that was chosen: what it is, what it costs, and whether that is too much."""

import logging
import math
from dataclasses import dataclass
from typing import Any

from ...config import ComputeConfig, UserError
from ...job import Job
from ...pricing.cost import Attempt
from ..remote.cost_estimate import UNKNOWN, expected

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A machine, as SkyPilot would take it first or has taken it."""

    cloud: str
    instance_type: str
    region: str
    use_spot: bool
    gpus: int
    """On every machine."""

    hourly_usd: float | None
    """Of one machine; None where SkyPilot's catalog does not say it."""

    @classmethod
    def of(cls, found: Any) -> "Offer":
        """Read SkyPilot's `Resources` of one certain machine."""
        return cls(
            cloud=str(found.cloud),
            instance_type=str(found.instance_type),
            region=str(found.region or "any region"),
            use_spot=bool(found.use_spot),
            gpus=int(sum((found.accelerators or {}).values())),
            hourly_usd=_price(found),
        )

    def machines(self, nodes: int) -> str:
        """Return e.g. `2 x g5.12xlarge (spot, AWS us-east-1)`."""
        market = "spot" if self.use_spot else "on demand"
        many = f"{nodes} x " if nodes > 1 else ""
        return f"{many}{self.instance_type} ({market}, {self.cloud} {self.region})"

    def describe(self, nodes: int) -> str:
        """Return the same with the price of all of them: `..., $4.60 an hour`."""
        price = "price n/a" if self.hourly_usd is None else f"${self.hourly_usd * nodes:.2f} an hour"
        return f"{self.machines(nodes)}, {price}"

    def all_hourly(self, nodes: int) -> float | None:
        """Return what all machines together cost an hour."""
        return None if self.hourly_usd is None else self.hourly_usd * nodes


def announce(job: Job, plan: Offer, nodes: int, name: str) -> None:
    """Say what is about to be launched: machine, place, price an hour, and the total where earlier runs tell it."""
    found = expected(job, plan.instance_type, nodes)
    total = UNKNOWN if found is None else found.words(plan.all_hourly(nodes))
    log.info("launching %s, %s, as %s", plan.describe(nodes), total, name)


def enter(attempt: Attempt, plan: Offer) -> None:
    """Write a machine down as that of an attempt."""
    attempt.machine, attempt.instance_type = plan.machines(attempt.nodes), plan.instance_type
    attempt.hourly_usd = plan.all_hourly(attempt.nodes)


def check_price(plan: Offer, compute: ComputeConfig) -> None:
    """Refuse machines that cost more than may be spent, or for which nobody knows it.

    Raises:
        UserError: with the price.
    """
    nodes = compute.num_nodes or 1
    limit, price = compute.max_hourly_usd, plan.all_hourly(nodes)
    if limit is not None and (price is None or price > limit):
        reason = "has no known price" if price is None else f"costs ${price:.2f} an hour"
        raise UserError(f"compute.max_hourly_usd={limit:g}: what can be had, {plan.describe(nodes)}, {reason}")


def _price(found: Any) -> float | None:
    try:
        price = float(found.get_cost(3600))
    except Exception as error:
        log.debug("no price: %s", error)
        return None
    return price if math.isfinite(price) and price > 0 else None
