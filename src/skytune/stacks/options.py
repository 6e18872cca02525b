"""What a person asked of `python src/stack.py`, and what follows: names on AWS, the step operator's settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ComputeConfig
from ..config.schema.sagemaker import PREFIX
from ..launch.remote.machine import SIZE
from . import files

if TYPE_CHECKING:
    from ..aws.account import Account
    from ..aws.names import Names
    from .registry import Registered

CLOUD = "aws"


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """The words of a command; None where nothing was said."""

    name: str
    configs: Path
    file: str | None = None
    region: str | None = None
    bucket: str | None = None
    compute: str | None = None
    spot: bool | None = None
    keep_days: int | None = None
    sagemaker: bool = False
    """Whether the execution role of SageMaker's jobs is made, too."""
    timeout: float = 9.0
    """Seconds within which `check` has to know."""

    def stack_file(self) -> files.StackFile:
        """Return the stack file with the words put in."""
        found = files.read(self.configs, self.file or self.name)
        for key in ("region", "bucket", "compute", "spot", "keep_days"):
            if getattr(self, key) is not None:
                setattr(found, key, getattr(self, key))
        found.__post_init__()
        return found


def settings_of(asked: StackOptions, file: files.StackFile) -> dict[str, Any]:
    """Return what the step operator is registered with, apart from the place.

    Raises:
        ConfigError: keys or values that `compute` does not know.
    """
    machine = {**file.machine, **files.machine(asked.configs, file.compute), "use_spot": file.spot}
    files.checked(ComputeConfig, machine, "machine")
    return machine


def is_sagemakers(settings: dict[str, Any]) -> bool:
    """Whether a stack's own machine is one of SageMaker's."""
    return str(settings.get("instance_type") or "").startswith(PREFIX)


def names_of(stack: str, account: "Account", bucket: str | None) -> "Names":
    """Return how the things of a stack are called on AWS; `bucket` None means one of its own."""
    from ..aws.names import Names, checked_bucket

    given = checked_bucket(bucket) if bucket else None
    return Names(
        stack=stack, account=account.id, region=account.region, partition=account.partition, given_bucket=given
    )


def described(stack: "Registered") -> str:
    """Return where a stack is and what its machines are, in words."""
    size = next((str(stack.settings[key]) for key in SIZE if stack.settings.get(key)), "no machine of its own")
    many = f"{stack.settings['num_nodes']} x " if int(stack.settings.get("num_nodes") or 1) > 1 else ""
    market = "spot" if stack.settings.get("use_spot") else "on demand"
    return f"{CLOUD} {stack.region}, s3://{stack.bucket}, {many}{size}, {market}"
