"""SageMaker's training jobs in one region: the few requests about them, and the answers in plain values."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ...config import UserError
from .request import Request

log = logging.getLogger(__name__)

GROUP = "/aws/sagemaker/TrainingJobs"
"""CloudWatch's log group of all of them."""

ENDED = ("Completed", "Failed", "Stopped")
STOP_SECONDS = 120
"""What a job has between SIGTERM and SIGKILL."""

CAPACITY = re.compile(r"CapacityError|InsufficientCapacity|capacity", re.IGNORECASE)


class CloudAccount(Protocol):
    """An account of AWS, as `aws.account` opens it."""

    region: str

    def client(self, service: str, region: str | None = None) -> Any:
        """Return boto3's client of a service."""


@dataclass(frozen=True)
class Cloud:
    """How AWS is reached: this room may not know `aws`."""

    connect: Callable[[str | None], CloudAccount]
    spoken: Callable[[], AbstractContextManager[None]]
    """Turns botocore's errors into lines for a person."""


@dataclass(frozen=True)
class State:
    """What SageMaker says of a job."""

    status: str
    """InProgress, Stopping, or one of `ENDED`."""

    secondary: str
    """Starting, Downloading, Training, Interrupted, MaxRuntimeExceeded, MaxWaitTimeExceeded, ..."""

    reason: str = ""
    """Why it failed."""

    billable: float = 0.0
    """Seconds that are paid for, of one machine: with spot fewer than it ran, by as much as it is cheaper."""

    spot: bool = False
    instance: str = ""
    nodes: int = 1

    @property
    def no_machine(self) -> bool:
        """Whether it ended because there were no machines for it."""
        if self.status == "Failed":
            return bool(CAPACITY.search(self.reason)) and not self.billable
        return self.secondary in ("MaxWaitTimeExceeded", "MaxPendingTimeExceeded") and not self.billable


class TrainingJobs:
    """The jobs of one region."""

    def __init__(self, cloud: Cloud, account: CloudAccount, region: str) -> None:
        self.cloud, self.account, self.region = cloud, account, region
        self._seen: dict[str, str | None] = {}

    def create(self, request: Request) -> None:
        """Begin a job.

        Raises:
            UserError: SageMaker refuses; nothing was begun.
        """
        with self._client() as client:
            try:
                client.create_training_job(**request)
            except Exception as error:
                if "ResourceLimitExceeded" not in str(error):
                    raise
                kind, spot = request["ResourceConfig"], "spot " if request["EnableManagedSpotTraining"] else ""
                quota = f"{kind['InstanceType']} for {spot}training job usage"
                raise UserError(
                    f"SageMaker, {self.region}: the quota '{quota}' does not allow {kind['InstanceCount']} more: "
                    "Service Quotas in AWS's console raises it, another machine or sagemaker.regions avoids it"
                ) from error

    def state(self, name: str) -> State:
        """Ask how a job is."""
        with self._client() as client:
            found = client.describe_training_job(TrainingJobName=name)
        kind = found.get("ResourceConfig", {})
        return State(
            status=found["TrainingJobStatus"],
            secondary=found.get("SecondaryStatus", ""),
            reason=" ".join(str(found.get("FailureReason", "")).split()),
            billable=float(found.get("BillableTimeInSeconds") or 0.0),
            spot=bool(found.get("EnableManagedSpotTraining")),
            instance=kind.get("InstanceType", ""),
            nodes=int(kind.get("InstanceCount") or 1),
        )

    def stop(self, name: str) -> None:
        """Have a job told to end; that it has ended already is fine."""
        with self._client() as client, suppress(client.exceptions.ResourceNotFound):
            try:
                client.stop_training_job(TrainingJobName=name)
            except client.exceptions.ClientError as error:
                if "ValidationException" not in str(error):  # it has ended
                    raise

    def end(self, name: str, seconds: float = 2.0 * STOP_SECONDS, wait: float = 2.0) -> bool:
        """Stop a job and wait until it has ended; return whether it has."""
        self.stop(name)
        until = time.monotonic() + seconds
        while self.state(name).status not in ENDED:
            if time.monotonic() > until:
                return False
            time.sleep(wait)
        return True

    def running(self, part: str) -> Iterator[tuple[str, str]]:
        """Yield (name, status) of jobs that have not ended and whose names hold a part, the newest first."""
        with self._client() as client:
            pages = client.get_paginator("list_training_jobs")
            for status in ("InProgress", "Stopping"):
                for page in pages.paginate(NameContains=part, StatusEquals=status, SortBy="CreationTime"):
                    yield from ((each["TrainingJobName"], status) for each in page["TrainingJobSummaries"])

    def pooled(self, part: str) -> list[str]:
        """Return the names of jobs that have ended and whose machines are kept."""
        with self._client() as client:
            pages = client.get_paginator("list_training_jobs")
            found = pages.paginate(NameContains=part, WarmPoolStatusEquals="Available")
            return [each["TrainingJobName"] for page in found for each in page["TrainingJobSummaries"]]

    def give_back(self, name: str) -> None:
        """Have the machines that were kept after a job given back."""
        with self._client() as client:
            client.update_training_job(TrainingJobName=name, ResourceConfig={"KeepAlivePeriodInSeconds": 0})

    def lines(self, name: str) -> list[str]:
        """Return what the first machine has said since the last call; nothing where CloudWatch does not answer."""
        client, found = self.account.client("logs", self.region), []
        try:
            streams = client.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/algo-1-")
            for stream in (each["logStreamName"] for each in streams["logStreams"]):
                while True:
                    token = self._seen.get(stream)
                    more = {"nextToken": token} if token else {}
                    page = client.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True, **more)
                    found += [each["message"].rstrip("\n") for each in page["events"]]
                    self._seen[stream] = page["nextForwardToken"]
                    if page["nextForwardToken"] == token or not page["events"]:
                        break
        except Exception as error:  # the group is made by the first job; a log is not worth a run
            log.debug("CloudWatch: %s", error)
        return found

    # What only workers may know: a job's environment is shown to everybody who may look at the job.

    def hide(self, name: str, secrets: dict[str, str]) -> None:
        """Put secrets where the job's role may read them, under the job's name."""
        with self._client("secretsmanager") as client:
            client.create_secret(Name=name, SecretString=json.dumps(secrets))

    def forget(self, name: str) -> None:
        """Delete a job's secrets at once; that there are none is fine."""
        with self._client("secretsmanager") as client, suppress(client.exceptions.ResourceNotFoundException):
            client.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)

    @contextmanager
    def _client(self, service: str = "sagemaker") -> Iterator[Any]:
        """Lend boto3's client of a service, whose errors are lines for a person."""
        with self.cloud.spoken():
            yield self.account.client(service, self.region)
