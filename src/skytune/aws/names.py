"""How the things of a stack are called on AWS: made of the stack's name, so that nothing has to be remembered."""

import re
from dataclasses import dataclass

from ..config import ConfigError

STACK = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

RUNS = "runs"
"""Folder of the bucket that checkpoints go to; only what lies under it is ever deleted by age."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names, all of one stack."""

    stack: str
    account: str
    region: str
    partition: str = "aws"
    given_bucket: str | None = None

    @property
    def bucket(self) -> str:
        """Bucket names are unique in the world: the account's number makes this one so."""
        return self.given_bucket or self.own_bucket

    @property
    def own_bucket(self) -> str:
        """The bucket if none is given."""
        return f"skytune-{self.stack}-{self.account}-{self.region}"[:63].rstrip("-")

    @property
    def role(self) -> str:
        """Role and instance profile of the machines; IAM knows no regions."""
        return f"skytune-{self.stack}-{self.region}"

    @property
    def repository(self) -> str:
        """Repository for Docker images."""
        return f"skytune-{self.stack}"

    @property
    def store(self) -> str:
        """Where checkpoints go."""
        return f"s3://{self.bucket}/{RUNS}"

    def arn(self, service: str, rest: str, *, account: bool = True, region: bool = True) -> str:
        """Return the ARN of a thing of this account and region, or of none where AWS wants none."""
        place = self.region if region else ""
        return f"arn:{self.partition}:{service}:{place}:{self.account if account else ''}:{rest}"

    @property
    def bucket_arn(self) -> str:
        """ARN of the bucket."""
        return self.arn("s3", self.bucket, account=False, region=False)

    @property
    def role_arn(self) -> str:
        """ARN of the machines' role."""
        return self.arn("iam", f"role/{self.role}", region=False)

    @property
    def sagemaker_role(self) -> str:
        """Execution role of training jobs on SageMaker."""
        return f"{self.role}-sagemaker"

    @property
    def sagemaker_role_arn(self) -> str:
        """Its ARN."""
        return self.arn("iam", f"role/{self.sagemaker_role}", region=False)

    @property
    def profile_arn(self) -> str:
        """ARN of the machines' instance profile."""
        return self.arn("iam", f"instance-profile/{self.role}", region=False)

    @property
    def repository_arn(self) -> str:
        """ARN of the repository."""
        return self.arn("ecr", f"repository/{self.repository}")


def checked_stack(name: str) -> str:
    """Return the name of a stack if AWS's names can be made of it.

    Raises:
        ConfigError: they cannot.
    """
    if not STACK.fullmatch(name):
        raise ConfigError(f"stack {name}: a name of up to 20 small letters, digits and hyphens")
    return name


def checked_bucket(name: str) -> str:
    """Return the name of a bucket, without `s3://`.

    Raises:
        ConfigError: S3 takes no such name.
    """
    bare = name.removeprefix("s3://").rstrip("/")
    if not BUCKET.fullmatch(bare):
        raise ConfigError(f"--bucket {name}: a bucket's name has 3 to 63 small letters, digits, dots and hyphens")
    return bare
