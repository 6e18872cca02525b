"""The end of machines: taken down whatever happened, or kept for a while where that was asked for."""

import logging
import time

from ...config import ComputeConfig, UserError
from .cluster import Cluster
from .cost import Attempt, dollars

log = logging.getLogger(__name__)

DOWN_TRIES = 4


def keep(cluster: Cluster, attempt: Attempt, minutes: int) -> bool:
    """Keep the machines of a failed job for a while, and say how to look at them; return whether they are kept."""
    try:
        cluster.autodown(minutes)
    except Exception as error:
        log.warning("cannot keep the machines (%s): taking them down", error)
        return False
    hourly = attempt.hourly_usd
    price = "price n/a" if hourly is None else f"${hourly:.2f} an hour, {dollars(hourly * minutes / 60)} in all"
    log.warning(
        "kept for %d idle minutes (%s): `sky status` and then `ssh %s` looks at it, `sky down %s` ends it",
        minutes,
        price,
        cluster.name,
        cluster.name,
    )
    return True


def take_down(cluster: Cluster, compute: ComputeConfig) -> None:
    """Take the machines down.

    Raises:
        UserError: that fails again and again; it says what may still cost money.
    """
    reason = ""
    for wait in (*(2.0**n for n in range(DOWN_TRIES - 1)), 0.0):
        try:
            return cluster.down()
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            time.sleep(wait)
        except KeyboardInterrupt:
            reason = "interrupted"
            break
    raise UserError(
        f"machines of {cluster.name} may still run and cost money ({reason}): remove them with "
        f"`sky down {cluster.name}`; they take themselves down after {compute.idle_minutes_to_autostop} idle minutes"
    )
