"""What the stand-in's account refuses, and what it answers to questions of money and quotas: with boto3, in seconds."""

import time
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from farm import Farm, catalog

from_west, from_east = "us-west-2", "us-east-1"


@pytest.fixture(autouse=True)
def _inside(farm: Farm) -> Iterator[None]:
    with farm.inside():
        yield
    for each in farm.instances():
        farm.terminate(each)


def launch(farm: Farm, type_: str = "m5.large", zone: str = "us-east-1a", spot: bool = False, count: int = 1) -> str:
    """Ask for machines; return what EC2 answers: "ok" or the code of its refusal."""
    ec2 = farm.client("ec2", zone[:-1], retries={"max_attempts": 0})
    subnet = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [zone]}])["Subnets"][0]["SubnetId"]
    market = {"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}
    numbers = {"MinCount": count, "MaxCount": count}
    try:
        ec2.run_instances(ImageId="ami-1", InstanceType=type_, SubnetId=subnet, **numbers, **market)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "ok"


def test_capacity_is_gone_where_it_was_said_to_be(farm: Farm) -> None:
    sold_out = "InsufficientInstanceCapacity"
    with farm.no_capacity("m5.*", zone="us-east-1a", spot=True):
        assert launch(farm, spot=True) == sold_out
        assert launch(farm) == "ok"
        assert launch(farm, spot=True, zone="us-east-1b") == "ok"
        assert launch(farm, spot=True, type_="m6i.large") == "ok"
    with farm.no_capacity(region=from_west):
        assert [launch(farm, zone=zone) for zone in catalog.REGIONS[from_west]] == [sold_out, sold_out]
        assert launch(farm) == "ok"
    assert launch(farm, zone="us-west-2b") == "ok"
    refused = [call for call in farm.calls(action="RunInstances") if call["error"] == sold_out]
    assert [call["zone"] for call in refused][-3:] == ["us-east-1a", "us-west-2a", "us-west-2b"]


def test_quotas_are_counted_in_vcpus(farm: Farm) -> None:
    with farm.quota("Standard", 4, region=from_east, spot=False):
        assert launch(farm, count=3) == "VcpuLimitExceeded"
        assert launch(farm, count=2) == "ok"
        assert launch(farm) == "VcpuLimitExceeded"
        assert launch(farm, spot=True) == launch(farm, zone="us-west-2a") == "ok"
        code = catalog.QUOTAS["Standard", False][0]
        quotas = farm.client("service-quotas", from_east)
        assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"] == 4.0
        assert len(quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]) == len(catalog.QUOTAS)
    with farm.quota("P", 0):
        assert launch(farm, type_="p4d.24xlarge") == "VcpuLimitExceeded"
        assert launch(farm, type_="p4d.24xlarge", spot=True) == "MaxSpotInstanceCountExceeded"
        assert launch(farm, type_="g5.xlarge") == "ok"
    assert launch(farm) == "ok"


def test_credentials_expire_for_the_user_alone(farm: Farm) -> None:
    expired = {"sts": "ExpiredToken", "ec2": "RequestExpired", "s3": "ExpiredToken", "iam": "ExpiredToken"}
    asks = {"sts": "get_caller_identity", "ec2": "describe_instances", "s3": "list_buckets", "iam": "list_roles"}
    with farm.expired_credentials():
        for service, ask in asks.items():
            with pytest.raises(ClientError) as refused:
                getattr(farm.client(service), ask)()
            assert refused.value.response["Error"]["Code"] == expired[service]
    for service, ask in asks.items():
        getattr(farm.client(service), ask)()


def test_without_credentials_nothing_is_asked(farm: Farm) -> None:
    ask = ["aws", "sts", "get-caller-identity"]
    with farm.no_credentials():
        before = len(farm.calls(service="sts"))
        done = farm.run(ask)
        assert done.returncode != 0 and NoCredentialsError.fmt.split(".")[0] in done.stdout
        assert len(farm.calls(service="sts")) == before
    assert catalog.ACCOUNT in farm.run(ask, check=True).stdout


def test_single_actions_are_denied_so_often(farm: Farm) -> None:
    ec2 = farm.client("ec2")
    assert launch(farm) == "ok"
    (machine,) = farm.instances()
    with farm.denied("ec2", "TerminateInstances", times=1):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            ec2.terminate_instances(InstanceIds=[machine.id])
        assert farm.instances()[0].running
        ec2.terminate_instances(InstanceIds=[machine.id])
    assert farm.instances() == []
    assert [call["error"] for call in farm.calls(action="TerminateInstances")][-2:] == ["UnauthorizedOperation", ""]
    s3 = farm.client("s3")
    s3.create_bucket(Bucket="closed")
    with farm.denied("s3", "PUT /closed/*"), pytest.raises(ClientError, match="AccessDenied"):
        s3.put_object(Bucket="closed", Key="a", Body=b"b")


def test_s3_is_slow_both_ways(farm: Farm) -> None:
    s3 = farm.client("s3")
    s3.create_bucket(Bucket="slow")
    with farm.slow_s3(delay_s=0.2, bytes_per_s=400_000):
        began = time.monotonic()
        s3.put_object(Bucket="slow", Key="a", Body=bytes(200_000))
        put = time.monotonic() - began
        assert len(s3.get_object(Bucket="slow", Key="a")["Body"].read()) == 200_000
        assert put >= 0.7 and time.monotonic() - began - put >= 0.7


def test_prices_and_images_are_those_of_the_catalog(farm: Farm) -> None:
    ec2 = farm.client("ec2", from_west)
    zones = {"Name": "availability-zone", "Values": ["us-west-2b"]}
    prices = ec2.describe_spot_price_history(InstanceTypes=["g5.xlarge", "p4d.24xlarge"], Filters=[zones])
    found = {row["InstanceType"]: float(row["SpotPrice"]) for row in prices["SpotPriceHistory"]}
    assert found == {name: catalog.price(name, "us-west-2b", True) for name in ("g5.xlarge", "p4d.24xlarge")}
    names = {image["Name"] for image in ec2.describe_images(Owners=["amazon"])["Images"]}
    assert set(catalog.IMAGES.values()) <= names
    western = catalog.image_id("skypilot-aws-cpu-ubuntu", from_west)
    assert ec2.describe_images(ImageIds=[western])["Images"]
    with pytest.raises(ClientError, match="InvalidAMIID"):
        farm.client("ec2").describe_images(ImageIds=[western])


def test_what_a_test_forgot_to_switch_off_is_switched_off(farm: Farm) -> None:
    farm.call("fault", service="ec2", action="RunInstances", code="InsufficientInstanceCapacity", status=500)
    farm.call("set_quota", region=from_east, family="Standard", spot=False, cpus=0)
    assert launch(farm) == "InsufficientInstanceCapacity"
    assert [rule["code"] for rule in farm.heal()] == ["InsufficientInstanceCapacity"]
    assert launch(farm) == "ok"
