"""What the machines of a stack are on AWS: a role with one inline policy, and the instance profile that carries it.

SkyPilot would make a role with full rights to EC2 and S3, and copy the user's own keys to every machine, unless it is
told of a profile (`skytune.aws.skypilot`).
"""

import json

from ..common.findings import Finding, Level
from ..config import UserError
from .account import Account, ask, owner, tags
from .names import Names
from .policies import INLINE, Policy, machine, sagemaker, trust
from .reporting import Done

GONE = "NoSuchEntity"
"""IAM's word for what is not there."""

ABOUT = "the bucket, images, ending themselves; nothing else"
ABOUT_JOBS = "runs in the bucket, their logs, images, their secrets; nothing else"


def ensure(account: Account, names: Names) -> list[Done]:
    """Make role and instance profile, or bring them to what they should be.

    Raises:
        UserError: there is a role of that name that was not made for this stack.
    """
    about = f"Machines that skytune brings up on stack {names.stack}"
    return [_role(account, names, names.role, trust(), machine(names), ABOUT, about), _profile(account, names)]


def ensure_sagemaker(account: Account, names: Names) -> list[Done]:
    """Make the execution role of SageMaker's jobs, or bring it to what it should be.

    Raises:
        UserError: there is a role of that name that was not made for this stack.
    """
    about = f"Training jobs of skytune on stack {names.stack}"
    wanted = trust("sagemaker"), sagemaker(names)
    return [_role(account, names, names.sagemaker_role, *wanted, ABOUT_JOBS, about)]


def exists(account: Account, role: str) -> bool:
    """Whether there is a role of that name."""
    return ask(account.client("iam").get_role, GONE, RoleName=role) is not None


def policy_of(account: Account, role: str) -> Policy | None:
    """Return the machines' policy as AWS has it; None if the role or its policy is missing."""
    found = ask(account.client("iam").get_role_policy, GONE, RoleName=role, PolicyName=INLINE)
    return None if found is None else dict(found["PolicyDocument"])


def profile_holds(account: Account, role: str) -> bool:
    """Whether the instance profile is there and carries the role."""
    found = ask(account.client("iam").get_instance_profile, GONE, InstanceProfileName=role)
    return found is not None and [each["RoleName"] for each in found["InstanceProfile"]["Roles"]] == [role]


def check(account: Account, names: Names, *, jobs: bool) -> Finding:
    """Is there the role that machines, or jobs of SageMaker, get instead of the user's keys, and may it do what it
    should?"""
    name, what = (names.sagemaker_role, "execution role") if jobs else (names.role, "instance profile")
    way = f"`python src/stack.py register {names.stack}{' --sagemaker' * jobs}` puts it right"
    found = policy_of(account, name)
    if found is None or not (jobs or profile_holds(account, name)):
        return Finding(Level.fail, "role", f"no {what} {name}", way)
    if found != (sagemaker(names) if jobs else machine(names)):
        return Finding(Level.warn, "role", f"{name} may do other things than this version wants", way)
    return Finding(Level.ok, "role", f"{name}: {ABOUT_JOBS if jobs else ABOUT}")


def machines(account: Account, names: Names) -> list[str]:
    """Return the ids of machines with the stack's profile that are there, stopped ones included."""
    states = ["pending", "running", "stopping", "stopped"]
    filters = [{"Name": "instance-state-name", "Values": states}]
    pages = account.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    there = [each for page in pages for group in page["Reservations"] for each in group["Instances"]]
    return [each["InstanceId"] for each in there if each.get("IamInstanceProfile", {}).get("Arn") == names.profile_arn]


def remove(account: Account, names: Names) -> list[Done]:
    """Delete profile and role; what was not made for this stack stays."""
    iam, done = account.client("iam"), []
    profile = ask(iam.get_instance_profile, GONE, InstanceProfileName=names.role)
    if profile is None:
        done.append(Done("absent", "profile", names.role))
    elif owner(profile["InstanceProfile"].get("Tags", [])) != names.stack:
        done.append(Done("kept", "profile", names.role, "it was not made for this stack"))
    else:
        for role in profile["InstanceProfile"]["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=names.role, RoleName=role["RoleName"])
        iam.delete_instance_profile(InstanceProfileName=names.role)
        done.append(Done("removed", "profile", names.role))
    done.append(_without(account, names, names.role))
    if exists(account, names.sagemaker_role):
        done.append(_without(account, names, names.sagemaker_role))
    return done


def _without(account: Account, names: Names, role: str) -> Done:
    """Delete a role, if it was made for the stack."""
    iam = account.client("iam")
    found = ask(iam.get_role, GONE, RoleName=role)
    if found is None:
        return Done("absent", "role", role)
    if owner(found["Role"].get("Tags", [])) != names.stack:
        return Done("kept", "role", role, "it was not made for this stack")
    for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
        iam.delete_role_policy(RoleName=role, PolicyName=name)
    iam.delete_role(RoleName=role)
    return Done("removed", "role", role)


def _role(
    account: Account, names: Names, role: str, trusted: Policy, wanted: Policy, allowed: str, described: str
) -> Done:
    iam = account.client("iam")
    found = ask(iam.get_role, GONE, RoleName=role)
    if found is None:
        iam.create_role(
            RoleName=role,
            AssumeRolePolicyDocument=json.dumps(trusted),
            Tags=tags(names.stack),
            Description=described,
        )
        iam.put_role_policy(RoleName=role, PolicyName=INLINE, PolicyDocument=json.dumps(wanted))
        return Done("made", "role", role, allowed)
    if owner(found["Role"].get("Tags", [])) != names.stack:
        raise UserError(f"role {role} is there and was not made for this stack: choose another stack name")
    changes = []
    if found["Role"]["AssumeRolePolicyDocument"] != trusted:
        iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(trusted))
        changes.append("who may take it on")
    if policy_of(account, role) != wanted:
        iam.put_role_policy(RoleName=role, PolicyName=INLINE, PolicyDocument=json.dumps(wanted))
        changes.append("what it may do")
    more = [each["PolicyName"] for each in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]]
    about = f"it also has {', '.join(more)}, which somebody attached" if more else allowed
    return Done("changed" if changes else "found", "role", role, ", ".join(changes) or about)


def _profile(account: Account, names: Names) -> Done:
    iam, about = account.client("iam"), f"carries the role; SkyPilot gives it to machines of stack {names.stack}"
    found = ask(iam.get_instance_profile, GONE, InstanceProfileName=names.role)
    if found is None:
        iam.create_instance_profile(InstanceProfileName=names.role, Tags=tags(names.stack))
        iam.get_waiter("instance_profile_exists").wait(
            InstanceProfileName=names.role, WaiterConfig={"Delay": 1, "MaxAttempts": 20}
        )
        iam.add_role_to_instance_profile(InstanceProfileName=names.role, RoleName=names.role)
        return Done("made", "profile", names.role, about)
    if not found["InstanceProfile"]["Roles"]:
        iam.add_role_to_instance_profile(InstanceProfileName=names.role, RoleName=names.role)
        return Done("changed", "profile", names.role, "carries the role now")
    if found["InstanceProfile"]["Roles"][0]["RoleName"] != names.role:
        raise UserError(f"instance profile {names.role} carries another role: choose another stack name")
    return Done("found", "profile", names.role, about)
