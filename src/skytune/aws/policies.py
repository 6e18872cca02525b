"""Who may do what on AWS, as policy documents: the machines, a person who trains, a person who sets stacks up.

Machines may read and write runs in the stack's bucket, pull its images and end themselves (SkyPilot's autodown calls
EC2 from the machine): nothing else. `docs/aws.md` says it for people. Sources: SkyPilot's page on minimal permissions
for AWS, the calls in `sky/provision/aws`, and AWS's Service Authorization Reference (which calls can be limited to
which resources and conditions).
"""

from typing import Any

from ..launch.sagemaker.images import REGISTRIES
from .names import RUNS, Names

Policy = dict[str, Any]
Statement = dict[str, Any]

INLINE = "skytune-machine"
"""Name of the machines' policy, which is part of their role and goes with it."""

INSECURE = "NoPlainHttp"
"""Our statement in a bucket's policy; those of others stay."""

END = "ModifyInstanceAttribute TerminateInstances"
"""What SkyPilot calls to take a machine down."""

PULL = "BatchCheckLayerAvailability BatchGetImage GetDownloadUrlForLayer"
"""The calls that fetch an image."""

ANY = "*"
"""Resource of calls that AWS cannot limit to any."""


def trust(service: str = "ec2") -> Policy:
    """Return who may take a role on: a service, for its machines or jobs."""
    principal = {"Service": f"{service}.amazonaws.com"}
    return _policy({"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"})


def bucket(names: Names) -> Policy:
    """Return what nobody may do to a bucket of ours, whatever else allows it: talk to it without encryption."""
    plain = {"Bool": {"aws:SecureTransport": "false"}}
    both = [names.bucket_arn, f"{names.bucket_arn}/*"]
    return _policy(
        {
            "Sid": INSECURE,
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": both,
            "Condition": plain,
        }
    )


def machine(names: Names) -> Policy:
    """Return what the machines of a stack may do.

    IAM knows them by their role, which all machines of a stack share: it cannot tell their runs apart. What it can tell
    apart is the machine that asks from any other.
    """
    instances, runs = names.arn("ec2", "instance/*"), f"{names.bucket_arn}/{RUNS}/*"
    itself = {"ArnEquals": {"ec2:SourceInstanceARN": names.arn("ec2", "instance/${ec2:InstanceID}")}}
    worker = {**_of_stack(names), "StringEquals": {"aws:ResourceTag/ray-node-type": "worker"}}
    look = "DescribeInstances DescribeRouteTables DescribeSecurityGroups DescribeSubnets DescribeVpcs"
    return _policy(
        *_use_bucket(names, runs),
        # Inputs are the driver's to write: other runs read them, too.
        _keep_inputs(names),
        *_pull(names),
        _allow("EndItself", instances, "ec2", f"StopInstances {END}", Condition=itself),
        # The first machine of a cluster takes the others down, then itself.
        _allow("EndWorkers", instances, "ec2", END, Condition=worker),
        # Before it ends a machine that had ports opened, SkyPilot moves it to its default security group.
        _allow("LeaveSecurityGroups", names.arn("ec2", "security-group/*"), "ec2", "ModifyInstanceAttribute"),
        _allow("FindThemselves", ANY, "ec2", look),
    )


def sagemaker(names: Names) -> Policy:
    """Return what training jobs of SageMaker may do: the runs in the stack's bucket, their log, their image, the
    secrets that they were handed."""
    runs, group = f"{names.bucket_arn}/{RUNS}/*", names.arn("logs", "log-group:/aws/sagemaker/TrainingJobs*")
    account = REGISTRIES.get(names.region, names.account)
    images = f"arn:{names.partition}:ecr:{names.region}:{account}:repository/pytorch-training"
    write = "CreateLogGroup CreateLogStream DescribeLogStreams PutLogEvents"
    return _policy(
        *_use_bucket(names, runs),
        _keep_inputs(names),
        _allow("WriteLogs", group, "logs", write),
        *_pull(names),
        _allow("PullAwsImages", images, "ecr", PULL),
        _allow("ReadOwnSecrets", _secrets(names), "secretsmanager", "GetSecretValue"),
    )


def person(names: Names) -> Policy:
    """Return what a person needs to train on a stack that is there, and to check it."""
    instances, groups = names.arn("ec2", "instance/*"), names.arn("ec2", "security-group/*")
    volumes, vpcs = names.arn("ec2", "volume/*"), names.arn("ec2", "vpc/*")
    started = [names.arn("ec2", "image/ami-*", account=False), groups, volumes]
    started += [names.arn("ec2", f"{kind}/*") for kind in ("network-interface", "subnet")]
    of_stack, starting = _of_stack(names), {"StringEquals": {"ec2:CreateAction": "RunInstances"}}
    to_ec2 = {"StringEquals": {"iam:PassedToService": ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]}}
    linked = names.arn("iam", "role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot", region=False)
    look = "GetBucketPublicAccessBlock GetBucketTagging GetEncryptionConfiguration GetLifecycleConfiguration"
    push = "CompleteLayerUpload DescribeImages DescribeRepositories InitiateLayerUpload PutImage UploadLayerPart"
    reach = "AuthorizeSecurityGroupIngress CreateSecurityGroup DeleteSecurityGroup ModifyInstanceAttribute"
    return _policy(
        *_use_bucket(names, f"{names.bucket_arn}/*"),
        _allow("LookAtBucket", names.bucket_arn, "s3", look),
        *_pull(names),
        _allow("PushImages", names.repository_arn, "ecr", push),
        _allow("StartMachines", instances, "ec2", "RunInstances", Condition=of_stack),
        _allow("WithTheirParts", started, "ec2", "RunInstances"),
        _allow("TagNewMachines", [instances, volumes], "ec2", "CreateTags", Condition=starting),
        # SkyPilot says only afterwards which machine is the first of a cluster.
        _allow("TagMachines", instances, "ec2", "CreateTags", Condition=of_stack),
        _allow("EndMachines", instances, "ec2", f"StartInstances StopInstances {END}", Condition=of_stack),
        _allow("ReachMachines", [groups, vpcs], "ec2", reach),
        _allow("GiveMachinesTheirRole", names.role_arn, "iam", "PassRole", Condition=to_ec2),
        *_train_on_sagemaker(names),
        _allow("LookAtTheirRole", [names.role_arn, names.sagemaker_role_arn], "iam", "GetRole GetRolePolicy"),
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
        "CreateBucket DeleteBucket GetBucketPolicy ListBucketVersions PutBucketPolicy PutBucketPublicAccessBlock "
        "PutBucketTagging PutEncryptionConfiguration PutLifecycleConfiguration"
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
        _allow("Role", [names.role_arn, names.sagemaker_role_arn], "iam", role),
        _allow("Profile", names.profile_arn, "iam", profile),
        _allow("Repository", names.repository_arn, "ecr", repository),
    )


def _use_bucket(names: Names, objects: str) -> list[Statement]:
    """Allow reading and writing some objects of the stack's bucket, and of none of that name in another account."""
    ours = {"StringEquals": {"aws:ResourceAccount": names.account}}
    look = "GetBucketLocation ListBucket ListBucketMultipartUploads"
    use = "AbortMultipartUpload DeleteObject GetObject ListMultipartUploadParts PutObject"
    return [
        _allow("ListBucket", names.bucket_arn, "s3", look, Condition=ours),
        _allow("UseBucket", objects, "s3", use, Condition=ours),
    ]


def _train_on_sagemaker(names: Names) -> list[Statement]:
    """Allow what the launcher of training jobs asks, and `stack.py check` and `destroy`."""
    jobs, group = names.arn("sagemaker", "training-job/skytune-*"), "log-group:/aws/sagemaker/TrainingJobs*"
    to_sagemaker = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    calls = "AddTags CreateTrainingJob StopTrainingJob UpdateTrainingJob"
    return [
        _allow("TrainOnSageMaker", jobs, "sagemaker", calls),
        _allow("LookAtTrainingJobs", ANY, "sagemaker", "DescribeTrainingJob ListTrainingJobs"),
        _allow("ReadTheirLogs", names.arn("logs", group), "logs", "DescribeLogStreams GetLogEvents"),
        _allow("HandThemSecrets", _secrets(names), "secretsmanager", "CreateSecret DeleteSecret"),
        _allow("GiveJobsTheirRole", names.sagemaker_role_arn, "iam", "PassRole", Condition=to_sagemaker),
    ]


def _secrets(names: Names) -> str:
    """Return the ARNs of what jobs are handed that nobody else may know: each has its job's name."""
    return names.arn("secretsmanager", "secret:skytune-*")


def _keep_inputs(names: Names) -> Statement:
    return _allow("KeepInputs", f"{names.bucket_arn}/*.inputs/*", "s3", "DeleteObject PutObject", Effect="Deny")


def _of_stack(names: Names) -> dict[str, Any]:
    """Return the condition that a machine has the stack's profile, which is given at its start and stays."""
    return {"ArnEquals": {"ec2:InstanceProfile": names.profile_arn}}


def _pull(names: Names) -> list[Statement]:
    return [
        _allow("LogInToRegistry", ANY, "ecr", "GetAuthorizationToken"),
        _allow("PullImages", names.repository_arn, "ecr", PULL),
    ]


def _allow(sid: str, resource: str | list[str], service: str, calls: str, **more: Any) -> Statement:
    """Return a statement; the calls of the service are separated by spaces."""
    actions = [f"{service}:{call}" for call in calls.split()]
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource, **more}


def _policy(*statements: Statement) -> Policy:
    return {"Version": "2012-10-17", "Statement": list(statements)}
