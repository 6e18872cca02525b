"""What a machine costs now in every zone of the spot market; `launch.prices` knows the price on demand."""

from datetime import UTC, datetime

from ...config import UserError
from .account import Account


def on_demand(account: Account, instance_type: str) -> float | None:
    """Return the price of a Linux machine in US dollars an hour by AWS's price list; None if it has none, or may not be
    asked."""
    from ...launch.prices import aws_price  # importing launchers takes a second

    try:
        return aws_price(instance_type, False, account.region, account.client)
    except UserError:
        return None


def spot(account: Account, instance_type: str) -> list[tuple[float, str]]:
    """Return (US dollars an hour, zone) as of now, the cheapest first; empty where there is no spot market."""
    pages = (
        account.client("ec2")
        .get_paginator("describe_spot_price_history")
        .paginate(
            InstanceTypes=[instance_type],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(UTC),
        )
    )
    newest: dict[str, tuple[datetime, float]] = {}
    for page in pages:
        for each in page["SpotPriceHistory"]:
            zone, at = each["AvailabilityZone"], each["Timestamp"]
            if zone not in newest or at > newest[zone][0]:
                newest[zone] = (at, float(each["SpotPrice"]))
    return sorted((price, zone) for zone, (_, price) in newest.items())


def said(usd: float) -> str:
    """Return a price as a person would read it."""
    return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.4f}"
