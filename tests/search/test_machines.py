"""What a search on machines may cost, before any is brought up."""

from typing import Any

import pytest

from skytune.config import ConfigError
from skytune.pricing import catalog
from skytune.search.machines import Machines


def machines(
    design: Any, stack: dict[str, Any] | None = None, compute: dict[str, Any] | None = None, **search: Any
) -> Any:
    asked = {"machines": 2, "max_usd": 1.0, "trials": 3, **search}
    return Machines(design({"compute": {"device": "auto", **(compute or {})}}, **asked), stack or {})


def test_the_price_is_the_most_that_an_hour_of_all_nodes_costs(design: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {("g5.xlarge", True, "us-east-1"): 0.4, ("g5.xlarge", False, "us-east-1"): 1.0}
    monkeypatch.setattr(catalog, "catalog_price", lambda *asked: prices.get(asked))
    stack = {"infra": "aws/us-east-1", "instance_type": "g5.xlarge", "use_spot": True}
    assert machines(design, stack).price.usd_per_hour == 0.4
    assert machines(design, stack, {"num_nodes": 3}).price.usd_per_hour == pytest.approx(1.2)
    # Where the full price may be paid, it is the full price.
    full = {"recovery": {"on_demand_fallback": True}}
    assert machines(design, stack, full).price.usd_per_hour == 1.0
    # A machine that the catalog does not list there, or any of a kind: what the user allows.
    elsewhere = {"region": "eu-north-1", "max_hourly_usd": 3.0}
    assert machines(design, stack, elsewhere).price.usd_per_hour == 3.0
    assert machines(design, {"accelerators": "A10G:1"}, {"max_hourly_usd": 2.0}).price.usd_per_hour == 2.0
    assert machines(design, {}, {"usd_per_hour": 0.5, "num_nodes": 2}).price.usd_per_hour == 1.0


def test_what_cannot_be_kept_is_refused(design: Any) -> None:
    with pytest.raises(ConfigError, match=r"give compute.instance_type and compute.region, or compute.max_hourly_usd"):
        machines(design, {"accelerators": "A10G:1"})
    with pytest.raises(ConfigError, match=r"ml.g5.xlarge is SageMaker's; take an instance type of EC2"):
        machines(design, {"sagemaker_role": "arn"}, {"instance_type": "ml.g5.xlarge"})
    with pytest.raises(ConfigError, match=r"give checkpoint.store=s3://BUCKET/PATH"):
        machines(design, {}, {"usd_per_hour": 0.5}, trials=9, halving=3)
    machines(design, {"store": "s3://bucket/runs"}, {"usd_per_hour": 0.5}, trials=9, halving=3)
    with pytest.raises(ConfigError, match=r"compute.local=true exclude each other"):
        machines(design, {}, {"usd_per_hour": 0.5, "local": True})
    dear = machines(design, {}, {"usd_per_hour": 30.0})
    dear.check_budget(0.4)
    with pytest.raises(ConfigError, match=r"search.max_usd=1: no trial can begin: \$0.60 are spent, .* \(\$0.50\)"):
        dear.check_budget(0.6)
