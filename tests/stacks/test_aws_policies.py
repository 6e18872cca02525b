"""The policy documents: nobody may do anything to everything, and machines little at all."""

import json
import re
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import boto3
import pytest

from skytune.aws import policies, preflight, stack
from skytune.aws.account import Account
from skytune.aws.names import Names

NAMES = Names(stack="aws", account="123456789012", region="us-east-1")
ALL = {"machine": policies.machine, "person": policies.person, "setup": policies.setup, "sagemaker": policies.sagemaker}


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
            known = ("123456789012", "skytune-aws", "skytune-*", "image/ami-*", "repository/pytorch-training")
            assert resource == "*" or (resource.startswith("arn:aws:") and any(word in resource for word in known))


def test_statements_have_names_of_their_own() -> None:
    for make in ALL.values():
        names = [each["Sid"] for each in statements(make(NAMES))]
        assert len(names) == len(set(names)) and all(name.isalnum() for name in names)


# Who may do what, as IAM would judge it: a denial counts most, a condition on a key that a request lacks is not met.


def holds(operator: str, wanted: Any, found: str | None, context: dict[str, str]) -> bool:
    texts = [re.sub(r"\$\{([^}]+)\}", lambda match: context.get(match[1], "?"), each) for each in listed(wanted)]
    if found is None:
        return False
    assert operator in ("StringEquals", "StringLike", "ArnEquals", "Bool"), operator
    exact = operator in ("StringEquals", "Bool")
    return any(found == text if exact else fnmatchcase(found, text) for text in texts)


def allowed(document: dict[str, Any], action: str, resource: str, **keys: str) -> bool:
    """Whether a policy allows a call; keys of conditions are written with `__` for `:` and `_` for `-` or `/`."""
    context = {name.replace("__", ":"): value for name, value in keys.items()}
    context |= {
        f"aws:ResourceTag/{name[4:].replace('_', '-')}": v for name, v in keys.items() if name.startswith("tag_")
    }
    effects = [
        each["Effect"]
        for each in statements(document)
        if any(fnmatchcase(action, one) for one in listed(each["Action"]))
        and any(fnmatchcase(resource, one) for one in listed(each["Resource"]))
        and all(
            holds(operator, wanted, context.get(key), context)
            for operator, pairs in each.get("Condition", {}).items()
            for key, wanted in pairs.items()
        )
    ]
    return "Allow" in effects and "Deny" not in effects


MACHINE, PERSON = policies.machine(NAMES), policies.person(NAMES)
PROFILE, OTHER_PROFILE = NAMES.profile_arn, NAMES.profile_arn.replace("skytune", "payroll")
ROOT = "arn:aws:ec2:us-east-1:123456789012"
OURS = {"aws__ResourceAccount": "123456789012"}


@pytest.mark.parametrize("action", ["TerminateInstances", "StopInstances", "ModifyInstanceAttribute"])
def test_a_machine_ends_itself_and_no_other(action: str) -> None:
    def may(machine: str, asked_by: str, **keys: str) -> bool:
        source = {"ec2__SourceInstanceARN": f"{ROOT}:instance/{asked_by}", "ec2__InstanceID": machine}
        return allowed(
            MACHINE, f"ec2:{action}", f"{ROOT}:instance/{machine}", ec2__InstanceProfile=PROFILE, **source, **keys
        )

    assert may("i-1", "i-1")
    assert not may("i-2", "i-1", tag_ray_node_type="head") and not may("i-2", "i-1")
    # The first machine of a cluster ends the others: SkyPilot's autodown runs there.
    assert may("i-2", "i-1", tag_ray_node_type="worker") == (action != "StopInstances")


def test_a_machine_does_not_end_workers_of_others() -> None:
    keys = {"ec2__InstanceProfile": OTHER_PROFILE, "tag_ray_node_type": "worker"}
    assert not allowed(MACHINE, "ec2:TerminateInstances", f"{ROOT}:instance/i-2", **keys)


def test_a_machine_writes_below_runs_and_no_inputs() -> None:
    def may(action: str, key: str, **keys: str) -> bool:
        return allowed(MACHINE, f"s3:{action}", f"{NAMES.bucket_arn}/{key}", **(keys or OURS))

    for action in ("GetObject", "PutObject", "DeleteObject"):
        assert may(action, "runs/a-1234/step-00000001/model.safetensors")
        assert not may(action, "elsewhere/model.safetensors") and not may(action, "runs.txt")
    assert may("GetObject", "runs/.inputs/0123")
    for place in ("runs/.inputs/0123", "runs/team/.inputs/0123"):
        assert not may("PutObject", place) and not may("DeleteObject", place)


@pytest.mark.parametrize("document", [MACHINE, PERSON], ids=["machine", "person"])
def test_a_bucket_of_that_name_in_another_account_is_not_used(document: dict[str, Any]) -> None:
    for action, resource in (("PutObject", f"{NAMES.bucket_arn}/runs/a"), ("ListBucket", NAMES.bucket_arn)):
        assert allowed(document, f"s3:{action}", resource, **OURS)
        assert not allowed(document, f"s3:{action}", resource, aws__ResourceAccount="210987654321")
        assert not allowed(document, f"s3:{action}", resource)


def test_a_person_tags_and_ends_no_machine_of_somebody_else() -> None:
    def may(action: str, **keys: str) -> bool:
        return allowed(PERSON, f"ec2:{action}", f"{ROOT}:instance/i-1", **keys)

    assert may("CreateTags", ec2__CreateAction="RunInstances")
    assert not may("CreateTags") and not may("CreateTags", ec2__InstanceProfile=OTHER_PROFILE)
    for action in ("CreateTags", "RunInstances", "TerminateInstances", "StopInstances", "ModifyInstanceAttribute"):
        assert may(action, ec2__InstanceProfile=PROFILE)
        assert not may(action, ec2__InstanceProfile=OTHER_PROFILE, tag_ray_cluster_name="x")
        assert not may(action, tag_ray_cluster_name="x")
    assert not allowed(PERSON, "ec2:CreateTags", f"{ROOT}:security-group/sg-1")


def test_a_person_gives_machines_no_other_role_and_nobody_else_this_one() -> None:
    def may(role: str, **keys: str) -> bool:
        return allowed(PERSON, "iam:PassRole", role, **keys)

    assert may(NAMES.role_arn, iam__PassedToService="ec2.amazonaws.com")
    assert not may(NAMES.role_arn, iam__PassedToService="lambda.amazonaws.com") and not may(NAMES.role_arn)
    assert not may(NAMES.role_arn.replace("skytune", "admin"), iam__PassedToService="ec2.amazonaws.com")


def test_a_machine_starts_no_other_and_passes_nothing_on() -> None:
    actions = {action for each in statements(MACHINE) if each["Effect"] == "Allow" for action in listed(each["Action"])}
    assert not {action for action in actions if action.startswith("iam:")}
    assert not actions & {"ec2:RunInstances", "ec2:CreateTags", "s3:ListAllMyBuckets", "s3:DeleteBucket"}


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
    until = time.monotonic() + 600
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
    stack.check_deletion(account, own, delete_data=True)
    boto3.client("s3").put_object(Bucket=own.bucket, Key="runs/a", Body=b"x")
    stack.remove(account, own, lambda _: None)

    def calls(*documents: dict[str, Any]) -> set[str]:
        return {action for document in documents for each in statements(document) for action in listed(each["Action"])}

    def covered(action: str, by: set[str]) -> bool:
        return action in by or (action.startswith("ec2:Describe") and "ec2:Describe*" in by)

    own_calls = {"s3:PutObject", "s3:PostObject", "sts:GetCallerIdentity"}  # this test's, and one that everybody may
    person = calls(policies.person(own))
    assert not {action for action in checking - own_calls if not covered(action, person)}
    both = person | calls(policies.setup(own))
    assert not {action for action in aws.actions - own_calls if not covered(action, both)}
    assert len(aws.actions) > 40
    # The names can be guessed: whoever has made a bucket of that name must not be asked. Two calls name no bucket of
    # anybody's yet; the third and fourth are this test's own.
    unguarded = {call for call in aws.unguarded if not call.startswith((f"PUT /{own.bucket}", "GET /?"))}
    assert not {call for call in unguarded if "runs/half" not in call and "runs/a" not in call}
