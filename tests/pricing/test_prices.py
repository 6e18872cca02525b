"""Prices: the design's table first; AWS through boto3 (moto's EC2 for spot, an answer in the price list's documented
form for on demand); SkyPilot's own catalog code on a small catalog. An unknown price is None."""

import json
import logging
import os
import subprocess
import sys
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skytune.config import NotReachable, PriceSource, StudyConfig, UserError
from skytune.pricing.catalog import catalog_price
from skytune.pricing.prices import PRICING_REGION, Price, aws_price, price_of

ROOT = Path(__file__).resolve().parents[2]


def test_the_designs_table_goes_first_and_asks_nobody() -> None:
    design = StudyConfig(prices={"g5.xlarge": 1.5, "g5.xlarge spot": 0.5, "local": 0.2}, price_source=PriceSource.aws)

    def nobody(*_: Any) -> Any:
        raise AssertionError("somebody was asked")

    assert price_of("g5.xlarge", False, design, clients=nobody) == Price(1.5, "study.prices")
    assert price_of("g5.xlarge", True, design, clients=nobody).usd_per_hour == 0.5
    assert price_of("local", False, design, 9.0).usd_per_hour == 0.2


def test_this_machine_and_unknown_ones() -> None:
    assert price_of("local", False, StudyConfig(), 0.3) == Price(0.3, "compute.usd_per_hour")
    assert price_of("local", False, StudyConfig()) == Price(None, "")
    assert price_of("g5.xlarge", False, StudyConfig()) == Price(None, "")


def product(usd: str, unit: str = "Hrs") -> str:
    """A product in the form that AWS documents for `GetProducts` (made, not recorded: nobody here has an account)."""
    dimension = {"unit": unit, "pricePerUnit": {"USD": usd}, "beginRange": "0", "endRange": "Inf"}
    terms = {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}}}}
    return json.dumps(
        {"product": {"attributes": {"instanceType": "g5.xlarge"}}, "serviceCode": "AmazonEC2", "terms": terms}
    )


def price_list(answer: list[str], asked: list[dict[str, Any]]) -> Any:
    """A boto3 client whose answers are given, checked against the service's own model by botocore."""
    import boto3
    from botocore.stub import ANY, Stubber

    client = boto3.client("pricing", region_name=PRICING_REGION, aws_access_key_id="x", aws_secret_access_key="x")
    stub = Stubber(client)
    stub.add_response(
        "get_products", {"FormatVersion": "aws_v1", "PriceList": answer}, {"ServiceCode": "AmazonEC2", "Filters": ANY}
    )
    client.meta.events.register("provide-client-params.pricing.GetProducts", lambda params, **_: asked.append(params))
    stub.activate()
    return client


def test_on_demand_from_the_price_list() -> None:
    asked: list[dict[str, Any]] = []
    client = price_list([product("1.0060000000"), product("0.0000000000"), product("5", "Quantity")], asked)
    regions: list[tuple[str, str]] = []
    found = aws_price("g5.xlarge", False, "eu-west-1", lambda *to: regions.append(to) or client)
    assert found == 1.006 and regions == [("pricing", PRICING_REGION)]
    wanted = {entry["Field"]: entry["Value"] for entry in asked[0]["Filters"]}
    assert (
        wanted["regionCode"] == "eu-west-1" and wanted["operatingSystem"] == "Linux" and wanted["tenancy"] == "Shared"
    )


def test_what_is_not_on_the_list_is_unknown() -> None:
    assert aws_price("g9.xlarge", False, "us-east-1", lambda *_: price_list([], [])) is None


def test_spot_from_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    from moto import mock_aws

    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    with mock_aws():
        design = StudyConfig(price_source=PriceSource.aws)
        found = price_of("m5.large", True, design)
    assert found.usd_per_hour == 0.00001  # moto's one price
    assert found.source == f"AWS spot price history, us-east-1, {datetime.now(UTC).date().isoformat()}"


def test_without_credentials_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key in [key for key in os.environ if key.startswith("AWS_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for key in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(key, str(tmp_path / "none"))
    with pytest.raises(NotReachable, match=r"^study\.price_source=aws: Unable to locate credentials; study\.prices"):
        aws_price("g5.xlarge", True, "us-east-1")


def test_what_aws_refuses_is_one_line() -> None:
    import boto3
    from botocore.stub import Stubber

    client = boto3.client("pricing", region_name=PRICING_REGION, aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        stub.add_client_error("get_products", "AccessDeniedException", "not authorized")
        with pytest.raises(UserError, match=r"AWS refuses: .*AccessDeniedException.*not authorized") as told:
            aws_price("g5.xlarge", False, "us-east-1", lambda *_: client)
    assert "\n" not in str(told.value)


def refused(status: int | None) -> Exception:
    """What requests raises, without and with an answer."""
    import requests

    request = requests.Request("GET", "https://raw.example.com/catalogs/vms.csv").prepare()
    response = None
    if status is not None:
        response = requests.Response()
        response.status_code = status
    return requests.RequestException("HTTPSConnectionPool" * 30, request=request, response=response)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (refused(None), r"raw\.example\.com does not answer"),
        (refused(503), r"raw\.example\.com answers 503"),
        (OSError("a\nb " * 99), r"a b a b .*\.\.\."),
    ],
)
def test_a_catalog_out_of_reach_is_one_short_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(*_: Any, **__: Any) -> Any:
        logging.getLogger("sky.catalog.common").error("Please check your internet connection.")
        raise error

    sky = types.ModuleType("sky")
    sky.catalog = types.SimpleNamespace(instance_type_exists=ask)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sky", sky)
    with pytest.raises(NotReachable, match=rf"^study\.price_source=skypilot: .*: {message}; study") as told:
        catalog_price("g5.xlarge", False, "us-east-1")
    assert "\n" not in str(told.value) and len(str(told.value)) < 300
    assert not caplog.records


COLUMNS = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch"
)
CATALOG = f"""{COLUMNS}
g5.xlarge,A10G,1.0,4.0,16.0,,1.006,0.43,us-east-1,use1-az1,x86_64
g5.xlarge,A10G,1.0,4.0,16.0,,1.006,0.40,us-east-1,use1-az2,x86_64
g5.xlarge,A10G,1.0,4.0,16.0,,1.123,0.5,eu-west-1,euw1-az1,x86_64
g6.xlarge,L4,1.0,4.0,16.0,,0.8048,,us-east-1,use1-az1,x86_64
"""

ASK = """
from skytune.pricing.catalog import catalog_price
print([catalog_price(*words) for words in (
    ("g5.xlarge", False, "us-east-1"), ("g5.xlarge", True, "us-east-1"), ("g5.xlarge", False, "eu-west-1"),
    ("g9.xlarge", False, "us-east-1"), ("g6.xlarge", True, "us-east-1"), ("g6.xlarge", False, "eu-west-1"))])
"""


@pytest.mark.slow
def test_skypilots_catalog(tmp_path: Path) -> None:
    """The real SkyPilot reads a small catalog in a home of its own; a file without its mark is never fetched anew."""
    folder = tmp_path / ".sky/catalogs/v8/aws"
    folder.mkdir(parents=True)
    (folder / "vms.csv").write_text(CATALOG)
    (folder / "images.csv").write_text("Tag,Region,OS,OSVersion,ImageId,CreationDate,BaseImageId\n")
    (folder / "instance_quota_mapping.csv").write_text("InstanceType,OnDemandInstanceCode,SpotInstanceCode\n")
    env = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    env |= {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().splitlines()[-1] == "[1.006, 0.4, 1.123, None, None, None]"
