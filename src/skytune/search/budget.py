"""How long a search may take: hours, or what its dollars pay for on this machine."""

from ..common.text import duration
from ..config import ConfigError, RunConfig
from ..job import read_json
from ..pricing.cost import dollars
from ..study.plan import LEAST_S
from ..study.store import ResultsStore


def limit(config: RunConfig) -> str:
    """Return the key that ends a search first, with its value; empty without a limit."""
    design = config.search
    seconds = [None if design.max_hours is None else design.max_hours * 3600, _usd_seconds(config)]
    if seconds[1] is not None and (seconds[0] is None or seconds[1] <= seconds[0]):
        return f"search.max_usd={design.max_usd:g}"
    return f"search.max_hours={design.max_hours:g}" if design.max_hours is not None else ""


def _usd_seconds(config: RunConfig) -> float | None:
    """Return for how many seconds `search.max_usd` pays for this machine; None where others are paid by what they
    cost."""
    ceiling, price = config.search.max_usd, config.compute.usd_per_hour
    if ceiling is None or config.search.machines:
        return None
    if price is None:
        raise ConfigError(
            f"search.max_usd={ceiling:g} cannot be kept: no price of this machine is known; give compute.usd_per_hour, "
            "or search.max_hours"
        )
    return ceiling / price * 3600 if price else None


def allowed_seconds(config: RunConfig) -> float | None:
    """Return how long the whole search may take; None without a limit."""
    hours = config.search.max_hours
    found = [
        seconds for seconds in (None if hours is None else hours * 3600, _usd_seconds(config)) if seconds is not None
    ]
    return min(found, default=None)


def elapsed(store: ResultsStore) -> float:
    """Return the seconds in which something of a search ran, over all starts; what ran at once counts once."""
    spans = []
    for path in (store.path / "attempts").glob("*.json"):
        spans += [(start["began"], start["seen"]) for start in read_json(path)]
    total, until = 0.0, float("-inf")
    for began, seen in sorted(spans):
        total += max(0.0, seen - max(began, until))
        until = max(until, seen)
    return total


def check_budget(config: RunConfig, store: ResultsStore) -> None:
    """Refuse to begin what cannot come to anything.

    Raises:
        ConfigError: they are not enough for anything.
    """
    allowed = allowed_seconds(config)
    if allowed is None:
        return
    used = elapsed(store)
    if allowed - used < LEAST_S:
        price = config.compute.usd_per_hour
        minute = f"{duration(LEAST_S)}" + (f" ({dollars(price / 60)})" if price and config.search.max_usd else "")
        spent = f"{duration(used)} are used, and " if used else ""
        raise ConfigError(
            f"{limit(config)}: no trial can begin: {spent}each is taken to need {minute} at least; allow more"
        )
