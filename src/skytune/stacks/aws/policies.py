"""Who may do what on AWS, as policy documents: the machines, a person who trains, a person who sets stacks up.

Machines may read and write the stack's bucket, pull its images and end themselves (SkyPilot's autodown calls EC2 from
the machine): nothing else. Sources: SkyPilot's page on minimal permissions for AWS, the calls in `sky/provision/aws`,
and AWS's Service Authorization Reference (which calls can be limited to which resources and conditions).
"""

from typing import Any

from .names import Names

Policy = dict[str, Any]
Statement = dict[str, Any]

INLINE = "skytune-machine"
"""Name of the machines' policy, which is part of their role and goes with it."""

ANY = "*"
"""Resource of calls that AWS cannot limit to any."""


def trust() -> Policy:
    """Return who may take the machines' role on: EC2."""
    ec2 = {"Service": "ec2.amazonaws.com"}
    return _policy({"Effect": "Allow", "Principal": ec2, "Action": "sts:AssumeRole"})


def machine(names: Names) -> Policy:
    """Return what the machines of a stack may do."""
    own = {"ArnEquals": {"ec2:InstanceProfile": names.profile_arn}}
    end = "ModifyInstanceAttribute StopInstances TerminateInstances"
    look = "DescribeInstances DescribeRouteTables DescribeSecurityGroups DescribeSubnets DescribeVpcs"
    return _policy(
        *_use_bucket(names),
        *_pull(names),
        _allow("EndThemselves", names.arn("ec2", "instance/*"), "ec2", end, Condition=own),
        # Before it ends a machine that had ports opened, SkyPilot moves it to its default security group.
        _allow("LeaveSecurityGroups", names.arn("ec2", "security-group/*"), "ec2", "ModifyInstanceAttribute"),
        _allow("FindThemselves", ANY, "ec2", look),
    )


def person(names: Names) -> Policy:
    """Return what a person needs to train on a stack that is there, and to check it."""
    instances, groups = names.arn("ec2", "instance/*"), names.arn("ec2", "security-group/*")
    volumes, vpcs = names.arn("ec2", "volume/*"), names.arn("ec2", "vpc/*")
    started = [names.arn("ec2", "image/ami-*", account=False), instances, groups, volumes]
    started += [names.arn("ec2", f"{kind}/*") for kind in ("network-interface", "subnet")]
    of_skypilot = {"StringLike": {"aws:ResourceTag/ray-cluster-name": "*"}}
    linked = names.arn("iam", "role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot", region=False)
    look = "GetBucketPublicAccessBlock GetBucketTagging GetEncryptionConfiguration GetLifecycleConfiguration"
    push = "CompleteLayerUpload DescribeImages DescribeRepositories InitiateLayerUpload PutImage UploadLayerPart"
    end = "ModifyInstanceAttribute StartInstances StopInstances TerminateInstances"
    reach = "AuthorizeSecurityGroupIngress CreateSecurityGroup CreateTags DeleteSecurityGroup ModifyInstanceAttribute"
    return _policy(
        *_use_bucket(names),
        _allow("LookAtBucket", names.bucket_arn, "s3", look),
        *_pull(names),
        _allow("PushImages", names.repository_arn, "ecr", push),
        _allow("StartMachines", started, "ec2", "RunInstances"),
        _allow("TagMachines", [instances, volumes], "ec2", "CreateTags"),
        _allow("EndMachines", instances, "ec2", end, Condition=of_skypilot),
        _allow("ReachMachines", [groups, vpcs], "ec2", reach),
        _allow("GiveMachinesTheirRole", names.role_arn, "iam", "GetRole GetRolePolicy PassRole"),
        _allow("FindTheirProfile", names.profile_arn, "iam", "GetInstanceProfile"),
        _allow("FirstSpotMachine", linked, "iam", "CreateServiceLinkedRole"),
        # SkyPilot asks more of EC2 than its page says, and for the list of buckets; all of it only reads.
        _allow("LookAround", ANY, "ec2", "Describe*"),
        _allow("LookAtBuckets", ANY, "s3", "ListAllMyBuckets"),
        _allow("LookAtQuotas", ANY, "servicequotas", "GetServiceQuota ListServiceQuotas"),
        _allow("LookAtPrices", ANY, "pricing", "GetProducts"),
    )


def setup(names: Names) -> Policy:
    """Return what a person needs, beside `person`, to register and destroy the stack."""
    bucket = (
        "CreateBucket DeleteBucket ListBucketVersions PutBucketPublicAccessBlock PutBucketTagging "
        "PutEncryptionConfiguration PutLifecycleConfiguration"
    )
    role = (
        "CreateRole DeleteRole DeleteRolePolicy ListAttachedRolePolicies ListInstanceProfilesForRole ListRolePolicies "
        "ListRoleTags PutRolePolicy TagRole UpdateAssumeRolePolicy"
    )
    profile = (
        "AddRoleToInstanceProfile CreateInstanceProfile DeleteInstanceProfile RemoveRoleFromInstanceProfile "
        "TagInstanceProfile"
    )
    repository = (
        "CreateRepository DeleteRepository GetLifecyclePolicy ListTagsForResource PutLifecyclePolicy TagResource"
    )
    return _policy(
        _allow("Bucket", names.bucket_arn, "s3", bucket),
        _allow("OldVersions", f"{names.bucket_arn}/*", "s3", "DeleteObjectVersion"),
        _allow("Role", names.role_arn, "iam", role),
        _allow("Profile", names.profile_arn, "iam", profile),
        _allow("Repository", names.repository_arn, "ecr", repository),
    )


def _use_bucket(names: Names) -> list[Statement]:
    objects = "AbortMultipartUpload DeleteObject GetObject ListMultipartUploadParts PutObject"
    return [
        _allow("ListBucket", names.bucket_arn, "s3", "GetBucketLocation ListBucket ListBucketMultipartUploads"),
        _allow("UseBucket", f"{names.bucket_arn}/*", "s3", objects),
    ]


def _pull(names: Names) -> list[Statement]:
    layers = "BatchCheckLayerAvailability BatchGetImage GetDownloadUrlForLayer"
    return [
        _allow("LogInToRegistry", ANY, "ecr", "GetAuthorizationToken"),
        _allow("PullImages", names.repository_arn, "ecr", layers),
    ]


def _allow(sid: str, resource: str | list[str], service: str, calls: str, **more: Any) -> Statement:
    """Return a statement; the calls of the service are separated by spaces."""
    actions = [f"{service}:{call}" for call in calls.split()]
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource, **more}


def _policy(*statements: Statement) -> Policy:
    return {"Version": "2012-10-17", "Statement": list(statements)}
