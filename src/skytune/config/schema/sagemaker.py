"""`sagemaker`: training jobs of Amazon SageMaker, for `compute=ml.*` alone. None of it decides the result."""

from dataclasses import dataclass, field
from enum import Enum

from ..checks import above_zero
from ..durations import whole_minutes
from ..errors import ConfigError

PREFIX = "ml."
"""How SageMaker's names of machines begin."""


class Distribution(str, Enum):
    """How the processes of a job talk to each other."""

    torch = "torch"
    smddp = "smddp"


@dataclass(kw_only=True)
class SageMakerConfig:
    """Training jobs of Amazon SageMaker (`compute=ml.g5.2xlarge`)."""

    role: str | None = None
    """ARN of the execution role; empty: the stack's, which `python src/stack.py register aws --sagemaker` makes."""

    image: str | None = None
    """Image of the container (`ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG`), with Python 3.11 or newer and pip;
    empty: AWS's Deep Learning Container with PyTorch of the region."""

    distribution: Distribution = Distribution.torch
    """`smddp`: the collective operations of AWS's own library, which a few machines and images have. `torch`: NCCL."""

    keep_alive: int | float | str | None = None
    """Keep the machines for so long after the job, for the next one like it (a warm pool): `30m`, `90s`, or a number of
    minutes, at most 6 hours. They are paid for as long as they wait. Empty gives them back at once."""

    max_hours: float = 24.0
    """The longest that one job may run (MaxRuntime). A run that needs longer saves before its end and goes on in
    another job, as long as each gains steps, and no longer than `compute.max_hours` in all, where that is set."""

    max_wait_hours: float | None = None
    """With `compute.use_spot`: how long a job may wait for machines and run, together; empty: twice `max_hours`."""

    save_minutes: float = 5.0
    """How long before `max_hours` a job begins to save and end."""

    price_per_hour: float | None = None
    """USD an hour of one machine, where the table of this package has no price of it."""

    regions: dict[str, str] = field(default_factory=dict)
    """Further regions to try where one has no machine, each with a bucket in it for what SageMaker reads there:
    `{us-west-2: s3://bucket/folder}`."""

    subnets: list[str] = field(default_factory=list)
    """Subnets of your VPC to run in; they need a way to S3, CloudWatch and a package index."""

    security_groups: list[str] = field(default_factory=list)
    """Security groups, together with `subnets`."""

    def __post_init__(self) -> None:
        self.distribution = Distribution(self.distribution)
        above_zero(self, "sagemaker", "max_hours", "max_wait_hours", "save_minutes", "price_per_hour")
        if self.keep_seconds > 6 * 3600:
            raise ConfigError(f"sagemaker.keep_alive={self.keep_alive}: at most 6h")
        if self.max_wait_hours is not None and self.max_wait_hours < self.max_hours:
            raise ConfigError(
                f"sagemaker.max_wait_hours={self.max_wait_hours:g}: must be at least sagemaker.max_hours="
                f"{self.max_hours:g}, which it holds"
            )
        if bool(self.subnets) != bool(self.security_groups):
            raise ConfigError("sagemaker.subnets and sagemaker.security_groups have an effect only together")
        for region, url in self.regions.items():
            if not url.startswith("s3://") or not url.removeprefix("s3://").strip("/"):
                raise ConfigError(f"sagemaker.regions.{region}={url}: a bucket there is meant, s3://bucket/folder")

    @property
    def keep_seconds(self) -> int:
        """`keep_alive` in seconds; 0 where nothing is kept."""
        return 0 if self.keep_alive is None else 60 * whole_minutes("sagemaker.keep_alive", self.keep_alive)
