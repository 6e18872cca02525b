"""What a stack has on AWS: made, found again, taken away. All of it read back with boto3 from moto's server."""

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from skytune.aws import policies, stack
from skytune.aws.account import Account
from skytune.aws.names import Names
from skytune.checkpoint.backends.urls import open_backend
from skytune.config import ConfigError, UserError

BUCKET = "skytune-aws-123456789012-us-east-1"
ROLE = "skytune-aws-us-east-1"


@pytest.fixture
def account(connect: Callable[..., Account]) -> Account:
    return connect()


def names(account: Account, **more: Any) -> Names:
    return Names(**{"stack": "aws", "account": account.id, "region": account.region, **more})


def ensure(account: Account, own: Names, keep_days: int = 30) -> dict[str, str]:
    """Return what was done, by kind."""
    return {each.kind: each.verb for each in stack.ensure(account, own, keep_days, lambda _: None)}


def test_everything_is_there_and_as_it_should_be(account: Account) -> None:
    assert set(ensure(account, names(account)).values()) == {"made"}
    s3, iam, ecr = boto3.client("s3"), boto3.client("iam"), boto3.client("ecr")
    rule = s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"][0]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    assert all(s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"].values())
    rules = {rule["ID"]: rule for rule in s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]}
    old = rules["skytune-old-checkpoints"]
    assert (old["Filter"]["Prefix"], old["Expiration"]["Days"], old["Status"]) == ("runs/", 30, "Enabled")
    assert rules["skytune-broken-uploads"]["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] == 7
    assert s3.get_bucket_tagging(Bucket=BUCKET)["TagSet"] == [{"Key": "skytune:stack", "Value": "aws"}]
    (policy,) = json.loads(s3.get_bucket_policy(Bucket=BUCKET)["Policy"])["Statement"]
    assert policy["Effect"] == "Deny" and policy["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    role = iam.get_role(RoleName=ROLE)["Role"]
    assert role["AssumeRolePolicyDocument"] == policies.trust()
    assert iam.list_attached_role_policies(RoleName=ROLE)["AttachedPolicies"] == []
    assert iam.list_role_policies(RoleName=ROLE)["PolicyNames"] == ["skytune-machine"]
    document = iam.get_role_policy(RoleName=ROLE, PolicyName="skytune-machine")["PolicyDocument"]
    assert document == policies.machine(names(account))
    profile = iam.get_instance_profile(InstanceProfileName=ROLE)["InstanceProfile"]
    assert [each["RoleName"] for each in profile["Roles"]] == [ROLE]
    repository = ecr.describe_repositories(repositoryNames=["skytune-aws"])["repositories"][0]
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
    kept = json.loads(ecr.get_lifecycle_policy(repositoryName="skytune-aws")["lifecyclePolicyText"])
    assert kept["rules"][0]["selection"]["countNumber"] == 5


def test_a_second_time_changes_nothing(account: Account, aws: Any) -> None:
    ensure(account, names(account))
    aws.calls.clear()
    assert set(ensure(account, names(account)).values()) == {"found"}
    writing = ("PUT ", "POST ", "DELETE ", "Create", "Put", "Update", "Add", "Tag", "Delete")
    assert [call for call in aws.calls if call.startswith(writing)] == []


@pytest.mark.parametrize("region", ["eu-central-1", "us-west-2"])
def test_other_regions(connect: Callable[..., Account], region: str) -> None:
    there = connect(region)
    assert set(ensure(there, names(there)).values()) == {"made"}
    assert boto3.client("s3").get_bucket_location(Bucket=names(there).bucket)["LocationConstraint"] == region
    assert set(ensure(there, names(there)).values()) == {"found"}


def test_what_somebody_changed_is_put_right_and_named(account: Account) -> None:
    ensure(account, names(account))
    s3, iam = boto3.client("s3"), boto3.client("iam")
    s3.delete_public_access_block(Bucket=BUCKET)
    s3.delete_bucket_encryption(Bucket=BUCKET)
    statement = {"Sid": "Theirs", "Effect": "Deny", "Principal": "*", "Action": "s3:PutObjectAcl", "Resource": "*"}
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    own_rule = {"ID": "mine", "Filter": {"Prefix": "other/"}, "Status": "Enabled", "Expiration": {"Days": 1}}
    s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [own_rule]})
    wide = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_role_policy(RoleName=ROLE, PolicyName="skytune-machine", PolicyDocument=json.dumps(wide))
    iam.remove_role_from_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    done = {each.kind: each for each in stack.ensure(account, names(account), 7, lambda _: None)}
    about = "public access blocked, encrypted, requests without encryption refused, checkpoints go after 7 days"
    assert done["bucket"].about == about
    kept = json.loads(s3.get_bucket_policy(Bucket=BUCKET)["Policy"])["Statement"]
    assert kept == [statement, *policies.bucket(names(account))["Statement"]]
    assert (done["role"].verb, done["role"].about) == ("changed", "what it may do")
    assert done["profile"].verb == "changed"
    rules = {rule["ID"] for rule in s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]}
    assert rules == {"mine", "skytune-old-checkpoints", "skytune-broken-uploads"}
    document = iam.get_role_policy(RoleName=ROLE, PolicyName="skytune-machine")["PolicyDocument"]
    assert document == policies.machine(names(account))
    assert set(ensure(account, names(account), 7).values()) == {"found"}


def test_an_attempt_that_was_cut_short_is_gone_on_with(account: Account) -> None:
    boto3.client("s3").create_bucket(Bucket=BUCKET)  # and then the network went away
    assert ensure(account, names(account))["bucket"] == "changed"
    assert ensure(account, names(account))["bucket"] == "found"


def test_a_bucket_of_the_users_is_used_and_left_as_it_is(account: Account) -> None:
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="lab-data")
    s3.put_object(Bucket="lab-data", Key="runs/precious", Body=b"x")
    own = names(account, given_bucket="lab-data")
    done = {each.kind: each for each in stack.ensure(account, own, 1, lambda _: None)}
    assert done["bucket"].verb == "found"
    assert done["bucket"].about.startswith("yours, left as it is: public access is not blocked")
    with pytest.raises(s3.exceptions.ClientError, match="NoSuchLifecycleConfiguration"):
        s3.get_bucket_lifecycle_configuration(Bucket="lab-data")
    document = boto3.client("iam").get_role_policy(RoleName=ROLE, PolicyName="skytune-machine")["PolicyDocument"]
    assert "arn:aws:s3:::lab-data/runs/*" in [each["Resource"] for each in document["Statement"]]
    stack.check_deletion(account, own, delete_data=False)  # what it holds is no reason: it stays
    gone: list[Any] = []
    stack.remove(account, own, gone.append)
    assert {each.kind: each.verb for each in gone}["bucket"] == "kept"
    assert s3.get_object(Bucket="lab-data", Key="runs/precious")["Body"].read() == b"x"


def test_destroying_leaves_nothing(account: Account) -> None:
    own = names(account)
    ensure(account, own)
    s3 = boto3.client("s3")
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"first", b"second"):
        s3.put_object(Bucket=BUCKET, Key="runs/a/step-1/model.safetensors", Body=body)
    s3.delete_object(Bucket=BUCKET, Key="runs/a/step-1/model.safetensors")
    s3.create_multipart_upload(Bucket=BUCKET, Key="runs/half")
    gone: list[Any] = []
    stack.remove(account, own, gone.append)
    assert {each.kind: each.verb for each in gone} == dict.fromkeys(
        ["bucket", "profile", "role", "repository"], "removed"
    )
    assert s3.list_buckets()["Buckets"] == []
    iam = boto3.client("iam")
    assert iam.list_roles()["Roles"] == iam.list_instance_profiles()["InstanceProfiles"] == []
    assert boto3.client("ecr").describe_repositories()["repositories"] == []
    again: list[Any] = []
    stack.remove(account, own, again.append)
    assert {each.verb for each in again} == {"absent"}


def test_data_is_not_deleted_by_the_way(account: Account) -> None:
    ensure(account, names(account))
    stack.check_deletion(account, names(account), delete_data=False)
    boto3.client("s3").put_object(Bucket=BUCKET, Key="runs/a/manifest.json", Body=b"x" * 2_000_000)
    with pytest.raises(UserError, match=rf"s3://{BUCKET} holds 1 object, 2.00 MB: --delete-data deletes it for good"):
        stack.check_deletion(account, names(account), delete_data=False)
    stack.check_deletion(account, names(account), delete_data=True)


def test_nothing_is_taken_away_under_machines_that_run(account: Account) -> None:
    ensure(account, names(account))
    started = boto3.client("ec2").run_instances(
        ImageId="ami-03cf127a", InstanceType="m6i.2xlarge", MinCount=1, MaxCount=1, IamInstanceProfile={"Name": ROLE}
    )
    with pytest.raises(UserError, match=f"machines still run .*{started['Instances'][0]['InstanceId']}.*sky down"):
        stack.check_deletion(account, names(account), delete_data=True)
    boto3.client("ec2").terminate_instances(InstanceIds=[started["Instances"][0]["InstanceId"]])
    stack.check_deletion(account, names(account), delete_data=True)


def test_names_of_others_are_left_alone(account: Account) -> None:
    boto3.client("iam").create_role(RoleName=ROLE, AssumeRolePolicyDocument=json.dumps(policies.trust()))
    with pytest.raises(UserError, match=f"role {ROLE} is there and was not made for this stack"):
        ensure(account, names(account))
    gone: list[Any] = []
    stack.remove(account, names(account), gone.append)
    assert {each.kind: each.verb for each in gone}["role"] == "kept"


def test_a_bucket_of_our_name_that_somebody_else_made_is_not_used(account: Account, aws: Any) -> None:
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    aws.foreign.add(BUCKET)
    with pytest.raises(UserError, match=r"account 123456789012 may not use it: another account"):
        ensure(account, names(account))
    aws.foreign.clear()
    assert "Tags" not in str(boto3.client("iam").list_roles())


def test_a_store_in_the_stacks_bucket_is_the_accounts(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    for bucket in (BUCKET, "lab-data"):
        boto3.client("s3").create_bucket(Bucket=bucket)
    monkeypatch.setenv("SKYTUNE_BUCKET_OWNER", f"{BUCKET}=123456789012")
    aws.unguarded.clear()
    open_backend(f"s3://{BUCKET}/runs").write("a/file", b"x")
    assert not aws.unguarded
    open_backend("s3://lab-data/runs").write("a/file", b"x")  # its name was given, by somebody who knows whose it is
    assert aws.unguarded
    aws.foreign.add(BUCKET)
    with pytest.raises(PermissionError):
        open_backend(f"s3://{BUCKET}/runs").write("a/file", b"x")


def test_a_bucket_in_another_region_is_refused(account: Account) -> None:
    boto3.client("s3").create_bucket(Bucket="far-away", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    with pytest.raises(ConfigError, match=r"lies in eu-west-1, the stack in us-east-1.*--region eu-west-1"):
        ensure(account, names(account, given_bucket="far-away"))


def test_what_it_costs_at_rest(account: Account) -> None:
    ensure(account, names(account))
    assert "at rest about $0.00 a month: bucket empty" in stack.at_rest(account, names(account))
