"""SageMaker's prices: a table with a source; what is not in it is unknown."""

from typing import Any

import pytest

from skytune.config import StudyConfig
from skytune.pricing.instances import INSTANCES, bare
from skytune.pricing.prices import price_of
from skytune.pricing.sagemaker import ML_PRICES, listed_price


def test_every_priced_machine_is_one_of_sagemakers() -> None:
    session = pytest.importorskip("botocore.session", reason="needs the extra aws")
    known = session.get_session().get_service_model("sagemaker").shape_for("TrainingInstanceType").enum
    assert set(ML_PRICES) <= set(known)
    assert {bare(name) for name in ML_PRICES if name[3] in "gp"} <= set(INSTANCES)


def test_a_machine_or_region_without_a_price_has_none() -> None:
    assert listed_price("ml.g5.2xlarge", "us-east-1") == 1.515
    assert listed_price("ml.g5.2xlarge", "eu-west-1") is None
    assert listed_price("ml.p5en.48xlarge", "us-east-1") is None
    found = price_of("ml.p5en.48xlarge", False, StudyConfig())
    assert (found.usd_per_hour, found.source) == (None, "")
    assert price_of("ml.g5.2xlarge", True, StudyConfig()).usd_per_hour == 1.515  # at most


def test_aws_is_asked_for_training_by_sagemakers_name() -> None:
    asked: list[dict[str, Any]] = []

    class Client:
        def get_paginator(self, name: str) -> "Client":
            return self

        def paginate(self, **words: Any) -> list[dict[str, Any]]:
            asked.append(words)
            price = {"unit": "Hrs", "pricePerUnit": {"USD": "1.52"}}
            return [{"PriceList": [{"terms": {"OnDemand": {"a": {"priceDimensions": {"b": price}}}}}]}]

    design = StudyConfig(price_source="aws", region="eu-west-1")  # type: ignore[arg-type]
    found = price_of("ml.g5.2xlarge", False, design, clients=lambda service, region: Client())
    assert found.usd_per_hour == 1.52
    filters = {each["Field"]: each["Value"] for each in asked[0]["Filters"]}
    assert asked[0]["ServiceCode"] == "AmazonSageMaker"
    assert filters == {"instanceName": "ml.g5.2xlarge", "component": "Training", "regionCode": "eu-west-1"}
