"""What a machine costs an hour: out of a table, or asked of AWS (on-demand price list, spot price history).

SkyPilot's catalog is asked in `catalog.py`. An unknown price is None, and everybody shows it as n/a.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..config import NotReachable, PriceSource, StudyConfig, UserError
from ..config.schema.sagemaker import PREFIX
from .sagemaker import SOURCE, listed_price

log = logging.getLogger(__name__)

PRICING_REGION = "us-east-1"
"""AWS's price list answers in a few regions only, for all of them."""


@dataclass(frozen=True)
class Price:
    """What an hour of one machine costs."""

    usd_per_hour: float | None
    source: str
    """Where it comes from, in a few words."""

    def hourly(self, nodes: int) -> float | None:
        """USD an hour of so many machines."""
        return None if self.usd_per_hour is None else self.usd_per_hour * nodes


def price_of(
    instance: str, spot: bool, design: StudyConfig, usd_per_hour: float | None = None, clients: Any = None
) -> Price:
    """Return a machine's price: the design's, else from where it says.

    Args:
        instance: an EC2 instance type, or `local`.
        usd_per_hour: what the configuration says this machine costs (`compute.usd_per_hour`), for `local`.
        clients: makes AWS clients: `(service, region) -> client`; boto3's if not given.

    Raises:
        UserError: AWS or the catalog does not answer, or refuses.
    """
    name = f"{instance} spot" if spot else instance
    if name in design.prices:
        return Price(design.prices[name], "study.prices")
    if instance == "local":
        return Price(usd_per_hour, "compute.usd_per_hour" if usd_per_hour is not None else "")
    if instance.startswith(PREFIX) and design.price_source is not PriceSource.aws:
        # SageMaker says only afterwards how much less a spot job costs: the full price is the most.
        listed = listed_price(instance, design.region)
        return Price(listed, SOURCE if listed is not None else "")
    if design.price_source is PriceSource.skypilot:
        from .catalog import catalog_price

        return Price(catalog_price(instance, spot, design.region), f"SkyPilot's catalog, {design.region}")
    if design.price_source is PriceSource.aws:
        today = datetime.now(UTC).date().isoformat()
        source = f"AWS {'spot price history' if spot else 'price list'}, {design.region}, {today}"
        return Price(aws_price(instance, spot, design.region, clients), source)
    return Price(None, "")


def aws_price(instance: str, spot: bool, region: str, clients: Any = None) -> float | None:
    """Return USD an hour of Linux on shared hardware from AWS; None where it lists none.

    Raises:
        NotReachable: no credentials, or AWS does not answer.
        UserError: AWS refuses.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ModuleNotFoundError as error:
        raise UserError("study.price_source=aws needs boto3: install the extra aws") from error
    make = clients or (lambda service, where: boto3.client(service, region_name=where))
    try:
        if spot and not instance.startswith(PREFIX):
            return min((price for price, _ in spot_prices(make("ec2", region), instance)), default=None)
        return _on_demand(make("pricing", PRICING_REGION), instance, region)
    except ClientError as error:
        raise UserError(f"study.price_source=aws: AWS refuses: {error}") from error
    except BotoCoreError as error:
        raise NotReachable(
            f"study.price_source=aws: {error}; study.prices gives prices without asking anybody"
        ) from error


def _on_demand(client: Any, instance: str, region: str) -> float | None:
    ml = instance.startswith(PREFIX)
    wanted = (
        {"instanceName": instance, "component": "Training"}
        if ml
        else {
            "instanceType": instance,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
    )
    wanted["regionCode"] = region
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    service, found = "AmazonSageMaker" if ml else "AmazonEC2", set[float]()
    for page in client.get_paginator("get_products").paginate(ServiceCode=service, Filters=filters):
        for entry in page["PriceList"]:
            product = json.loads(entry) if isinstance(entry, str) else entry
            found |= _usd_per_hour(product.get("terms", {}).get("OnDemand", {}))
    if len(found) > 1:
        log.warning("AWS lists several on-demand prices of %s in %s: taking the highest", instance, region)
    return max(found, default=None)


def _usd_per_hour(terms: Mapping[str, Any]) -> set[float]:
    dimensions = [one for term in terms.values() for one in term.get("priceDimensions", {}).values()]
    usd = {
        float(one["pricePerUnit"]["USD"])
        for one in dimensions
        if one.get("unit") == "Hrs" and "USD" in one.get("pricePerUnit", {})
    }
    return {price for price in usd if price > 0}  # a product without a price of its own is listed at 0


def spot_prices(client: Any, instance: str) -> list[tuple[float, str]]:
    """Return (USD an hour, zone) as of now, the cheapest first; empty where there is no spot market.

    Args:
        client: AWS's, for EC2 in a region.
    """
    newest: dict[str, tuple[Any, float]] = {}
    pages = client.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=[instance], ProductDescriptions=["Linux/UNIX"], StartTime=datetime.now(UTC)
    )
    for page in pages:
        for entry in page["SpotPriceHistory"]:
            zone, at = entry["AvailabilityZone"], entry["Timestamp"]
            if zone not in newest or at > newest[zone][0]:
                newest[zone] = (at, float(entry["SpotPrice"]))
    return sorted((price, zone) for zone, (_, price) in newest.items())
