"""What a machine costs now: on demand from AWS's price list, on spot from the market's own history."""

import json
from datetime import UTC, datetime

from .account import Account

PRICING_REGION = "us-east-1"
"""One of the few regions where the price list is served; it holds those of all regions."""


def on_demand(account: Account, instance_type: str) -> float | None:
    """Return the price of a Linux machine in US dollars an hour; None if the list has none."""
    wanted = {
        "instanceType": instance_type, "regionCode": account.region, "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used",
    }  # fmt: skip
    found = account.client("pricing", PRICING_REGION).get_products(
        ServiceCode="AmazonEC2", MaxResults=10,
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
    )  # fmt: skip
    for text in found["PriceList"]:
        for term in json.loads(text)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if price > 0:
                    return price
    return None


def spot(account: Account, instance_type: str) -> list[tuple[float, str]]:
    """Return (US dollars an hour, zone) as of now, the cheapest first; empty where there is no spot market."""
    pages = account.client("ec2").get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=[instance_type], ProductDescriptions=["Linux/UNIX"], StartTime=datetime.now(UTC),
    )  # fmt: skip
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
