"""The preflight: numbers as they are, FAIL where a run would not get its machine, and each line says what to do."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from skytune.aws import preflight, stack
from skytune.aws.account import Account
from skytune.aws.names import Names
from skytune.aws.quotas import Quota, _families, quota_of
from skytune.common.findings import Finding, Level

SECONDS = 60.0
"""Enough for a busy machine."""

A10G = {"accelerators": "A10G:4"}


@pytest.fixture
def account(connect: Callable[..., Account], monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setattr("skytune.aws.skypilot.SERVER", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setattr(preflight, "PRICE_SECONDS", SECONDS)
    return connect()


def names(account: Account, **more: Any) -> Names:
    return Names(**{"stack": "aws", "account": account.id, "region": account.region, **more})


def look(
    account: Account, machine: dict[str, Any] | None = None, seconds: float = SECONDS, **more: Any
) -> dict[str, list[Finding]]:
    """Return the findings, by name."""
    until = time.monotonic() + seconds
    found: dict[str, list[Finding]] = {}
    for each in preflight.examine(account, names(account, **more), machine or {}, bool(machine), until):
        found.setdefault(each.name, []).append(each)
    return found


@pytest.fixture
def made(account: Account) -> Account:
    stack.ensure(account, names(account), 30, lambda _: None)
    return account


def test_a_machine_that_can_be_had(made: Account) -> None:
    found = look(made, {"instance_type": "g5.12xlarge", "image_id": "ami-03cf127a"})
    assert {each.level for those in found.values() for each in those} == {Level.ok}
    assert found["identity"][0].text.startswith("account 123456789012, ")
    assert found["machine"][0].text == "g5.12xlarge: 48 vCPUs, 4 x A10G"
    demand, spot = [each.text for each in found["quota"]]
    assert demand == "on demand: 48 vCPUs of G and VT, 0 in use; g5.12xlarge needs 48"
    assert spot == "spot: 0 vCPUs of G and VT, 0 in use; g5.12xlarge needs 48: not enough, but not asked for"
    full, market = [each.text for each in found["price"]]
    assert full == "g5.12xlarge, on demand: $5.67 an hour in every zone of us-east-1"
    assert market == (
        "g5.12xlarge, spot: $2.30 an hour in us-east-1b, the cheapest zone ($2.41 us-east-1a, $2.95 us-east-1c)"
    )
    assert found["bucket"][0].text == f"s3://{names(made).bucket} answers (us-east-1)"
    assert found["image"][0].text == "ami-03cf127a"
    assert found["role"][0].text.startswith("skytune-aws-us-east-1: ")


def test_two_machines_need_twice_as_much(made: Account) -> None:
    found = look(made, {**A10G, "num_nodes": 2})
    quota = found["quota"][0]
    assert quota.level is Level.fail
    assert quota.text == "on demand: 48 vCPUs of G and VT, 0 in use; 2 x g5.12xlarge needs 96"
    assert "--quota-code L-DB2E81BA --desired-value 96 --region us-east-1" in quota.way_out
    assert found["price"][0].text.startswith("2 x g5.12xlarge, on demand: $11.34 an hour")


def test_what_runs_counts(made: Account) -> None:
    boto3.client("ec2").run_instances(ImageId="ami-03cf127a", InstanceType="g5.12xlarge", MinCount=1, MaxCount=1)
    quota = look(made, A10G)["quota"][0]
    assert quota.level is Level.fail and "48 in use; g5.12xlarge needs 48" in quota.text


def test_spot_is_judged_by_its_own_quota_and_the_machine_by_its_own_price(made: Account) -> None:
    found = look(made, {**A10G, "use_spot": True})
    assert [each.level for each in found["quota"]] == [Level.ok, Level.fail]
    assert found["machine"][0].text.startswith("g5.24xlarge")  # on spot, the larger one is the cheaper one


def test_without_a_machine_the_large_families_are_shown(made: Account) -> None:
    found = look(made)
    texts = [each.text for each in found["quota"]]
    assert "on demand: 256 vCPUs of Standard (A, C, D, H, I, M, R, T, Z), 0 in use" in texts
    assert "spot: 96 vCPUs of P4, P3 and P2, 0 in use" in texts
    assert len(texts) == 6 and "price" not in found


def test_more_than_may_be_spent(made: Account) -> None:
    found = look(made, {"instance_type": "g5.12xlarge", "max_hourly_usd": 5.0})["price"]
    assert (found[-1].level, found[-1].text) == (Level.fail, "$5.67 an hour is more than max_hourly_usd=5")


def test_skypilots_price_where_aws_does_not_tell(made: Account, aws: Any) -> None:
    aws.no_prices = True
    text = look(made, {"instance_type": "g5.12xlarge"})["price"][0].text
    assert text == "g5.12xlarge, on demand: $5.67 an hour in every zone of us-east-1 (SkyPilot's list)"


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ({"instance_type": "g5.13xlarge"}, "g5.13xlarge: EC2 has no such instance type in us-east-1"),
        ({"accelerators": "A10G:3"}, "no machine with accelerators A10G:3 in us-east-1; there are A10G:4"),
        ({"accelerators": "A100:8"}, "no machine with accelerators A100:8 in us-east-1; there are A10G:4"),
    ],
    ids=["no-such-type", "no-such-count", "not-here"],
)
def test_a_machine_that_does_not_exist_is_told_once(made: Account, machine: dict[str, Any], message: str) -> None:
    found = look(made, machine)
    assert (found["machine"][0].level, found["machine"][0].text) == (Level.fail, message)
    assert not {"quota", "price", "image"} & set(found)
    assert {"bucket", "role", "skypilot"} <= set(found)


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [({"cpus": "9+"}, "m6i.4xlarge"), ({"cpus": 8}, "m6i.2xlarge"), ({"memory": "33+"}, "m6i.4xlarge")],
    ids=["cpus", "exactly", "memory"],
)
def test_a_machine_without_gpu(made: Account, machine: dict[str, Any], chosen: str) -> None:
    assert look(made, machine)["machine"][0].text.startswith(f"{chosen}: ")


def test_what_is_missing_fails_and_says_what_makes_it(account: Account) -> None:
    found = look(account)
    assert (found["bucket"][0].level, found["role"][0].level) == (Level.fail, Level.fail)
    assert found["bucket"][0].way_out == "`python src/stack.py register aws` makes it"


def test_a_role_that_was_widened_is_noticed(made: Account) -> None:
    wide = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
    role = names(made).role
    boto3.client("iam").put_role_policy(RoleName=role, PolicyName="skytune-machine", PolicyDocument=wide)
    assert look(made)["role"][0].level is Level.warn


def test_images(made: Account) -> None:
    gone = look(made, {"instance_type": "g5.12xlarge"})["image"][0]
    assert (gone.level, gone.text) == (Level.fail, "skypilot:custom-gpu-ubuntu (ami-0gone) is not there in us-east-1")
    assert look(made)["image"][0].text == "ami-03cf127a (skypilot:custom-cpu-ubuntu)"
    image = "docker:123456789012.dkr.ecr.us-east-1.amazonaws.com/skytune-aws:train"
    missing = look(made, {"instance_type": "m6i.2xlarge", "image_id": image})["image"][0]
    assert missing.level is Level.fail and "docker push" in missing.way_out
    ecr = boto3.client("ecr")
    manifest = '{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}'
    ecr.put_image(repositoryName="skytune-aws", imageManifest=manifest, imageTag="train")
    assert look(made, {"instance_type": "m6i.2xlarge", "image_id": image})["image"][0].level is Level.ok


def test_a_bucket_in_another_region(made: Account) -> None:
    place = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3").create_bucket(Bucket="far-away", CreateBucketConfiguration=place)
    found = look(made, given_bucket="far-away")["bucket"][0]
    assert (found.level, found.text) == (Level.fail, "s3://far-away lies in eu-west-1, the machines in us-east-1")


def test_what_does_not_answer_is_not_waited_for(made: Account, aws: Any) -> None:
    aws.slow = {"ListServiceQuotas": 120.0}
    started = time.monotonic()
    found = look(made, A10G, seconds=2.0)
    assert time.monotonic() - started < 100  # and not 120
    assert found["quota"][0].level is Level.fail and found["quota"][0].text.startswith("no answer in time")


def test_expired_in_between(made: Account, aws: Any) -> None:
    aws.expired = True
    found = look(made, {"instance_type": "g5.12xlarge"})
    assert "have expired" in found["region"][0].text and "have expired" in found["bucket"][0].text


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("Standard (A, C, D, H, I, M, R, T, Z)", "a c d h i m r t z"),
        ("G and VT", "g vt"),
        ("P4, P3 and P2", "p4 p3 p2"),
        ("P", "p"),
    ],
    ids=["standard", "g", "p4", "p"],
)
def test_families_are_read_from_a_quotas_name(name: str, families: str) -> None:
    assert _families(name) == frozenset(families.split())


@pytest.mark.parametrize(
    ("instance_type", "name"),
    [("p4de.24xlarge", "P4, P3 and P2"), ("p5.48xlarge", "P5"), ("g6e.xlarge", "G and VT"), ("u-6tb1.metal", None)],
    ids=["p4de", "p5", "g6e", "u"],
)
def test_an_instance_type_counts_against_the_narrowest_quota(instance_type: str, name: str | None) -> None:
    known = [Quota(n, n, True, _families(n), 1) for n in ("P4, P3 and P2", "P5", "G and VT")]
    found = quota_of(instance_type, True, known)
    assert (found.name if found else None) == name


def test_no_price_lists_and_no_way_to_get_them(made: Account, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skytune.aws.catalog.folder", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "sky.catalog.common", None)  # as if SkyPilot were not installed
    assert "is not installed: pip install -c constraints.txt -e '.[aws]'" in look(made, A10G)["machine"][0].text
