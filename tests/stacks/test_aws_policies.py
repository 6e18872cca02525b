"""The policy documents: nobody may do anything to everything, and machines little at all."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from skytune.stacks.aws import policies, preflight, stack
from skytune.stacks.aws.account import Account
from skytune.stacks.aws.names import Names

NAMES = Names(stack="aws", account="123456789012", region="us-east-1")
ALL = {"machine": policies.machine, "person": policies.person, "setup": policies.setup}


def statements(document: dict[str, Any]) -> list[dict[str, Any]]:
    assert document["Version"] == "2012-10-17"
    return list(document["Statement"])


def listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("kind", ALL)
def test_no_action_is_a_star_and_only_reading_goes_everywhere(kind: str) -> None:
    for each in statements(ALL[kind](NAMES)):
        for action in listed(each["Action"]):
            assert re.fullmatch(r"[a-z0-9]+:[A-Z][A-Za-z]+\*?", action), action
            assert not action.endswith("*") or action == "ec2:Describe*"
            if "*" in listed(each["Resource"]):
                assert re.fullmatch(r"\w+:(Describe|Get|List)\w*\*?", action), action


@pytest.mark.parametrize("kind", ALL)
def test_every_arn_names_account_or_stack(kind: str) -> None:
    for each in statements(ALL[kind](NAMES)):
        for resource in listed(each["Resource"]):
            known = ("123456789012", "skytune-aws", "image/ami-*")
            assert resource == "*" or (resource.startswith("arn:aws:") and any(word in resource for word in known))


def test_statements_have_names_of_their_own() -> None:
    for make in ALL.values():
        names = [each["Sid"] for each in statements(make(NAMES))]
        assert len(names) == len(set(names)) and all(name.isalnum() for name in names)


def test_a_machine_may_end_those_of_its_own_profile_alone() -> None:
    (end,) = [each for each in statements(policies.machine(NAMES)) if "ec2:TerminateInstances" in each["Action"]]
    arn = "arn:aws:iam::123456789012:instance-profile/skytune-aws-us-east-1"
    assert end["Condition"] == {"ArnEquals": {"ec2:InstanceProfile": arn}}
    assert end["Resource"] == "arn:aws:ec2:us-east-1:123456789012:instance/*"


def test_a_machine_starts_no_other_and_passes_nothing_on() -> None:
    actions = {action for each in statements(policies.machine(NAMES)) for action in listed(each["Action"])}
    assert not {action for action in actions if action.startswith("iam:")}
    assert not actions & {"ec2:RunInstances", "ec2:CreateTags", "s3:ListAllMyBuckets", "s3:DeleteBucket"}


def test_a_person_may_give_machines_no_other_role() -> None:
    passing = [each for each in statements(policies.person(NAMES)) if "iam:PassRole" in each["Action"]]
    assert [each["Resource"] for each in passing] == ["arn:aws:iam::123456789012:role/skytune-aws-us-east-1"]


@pytest.mark.parametrize("kind", ALL)
def test_it_fits_into_what_iam_takes(kind: str) -> None:
    import json

    assert (
        len(json.dumps(ALL[kind](NAMES), separators=(",", ":"))) < 6144
    )  # a managed policy; an inline one of a role: 10240


def test_what_the_command_calls_is_what_the_policies_allow(connect: Callable[..., Account], aws: Any) -> None:
    account = connect()
    own = Names(stack="aws", account=account.id, region=account.region)
    aws.actions.clear()
    until = time.monotonic() + 60
    for machine in (
        {"instance_type": "g5.12xlarge"},
        {"image_id": f"docker:{account.id}.dkr.ecr.us-east-1.amazonaws.com/x:y"},
    ):
        list(preflight.examine(account, own, machine, True, until))
    checking = set(aws.actions)
    stack.ensure(account, own, 30, lambda _: None)
    document = policies.trust()
    document["Statement"][0]["Principal"] = {"Service": "lambda.amazonaws.com"}
    boto3.client("iam").update_assume_role_policy(RoleName=own.role, PolicyDocument=json.dumps(document))
    stack.ensure(account, own, 3, lambda _: None)
    stack.at_rest(account, own)
    boto3.client("s3").create_multipart_upload(Bucket=own.bucket, Key="runs/half")
    stack.refuse(account, own, delete_data=True)
    boto3.client("s3").put_object(Bucket=own.bucket, Key="runs/a", Body=b"x")
    stack.remove(account, own, lambda _: None)

    def allowed(*documents: dict[str, Any]) -> set[str]:
        return {action for document in documents for each in statements(document) for action in listed(each["Action"])}

    def covered(action: str, by: set[str]) -> bool:
        return action in by or (action.startswith("ec2:Describe") and "ec2:Describe*" in by)

    own_calls = {"s3:PutObject", "s3:PostObject", "sts:GetCallerIdentity"}  # this test's, and one that everybody may
    person = allowed(policies.person(own))
    assert not {action for action in checking - own_calls if not covered(action, person)}
    both = person | allowed(policies.setup(own))
    assert not {action for action in aws.actions - own_calls if not covered(action, both)}
    assert len(aws.actions) > 40
