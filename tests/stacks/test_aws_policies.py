"""The policy documents: nobody may do anything to everything, and machines little at all."""

import re
from typing import Any

import pytest

from skytune.stacks.aws import policies
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
