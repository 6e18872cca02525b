"""What the end of a job means: done, to be tried again on other machines, or failed for a reason of its own."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...job import RankError

ENDED = ("SUCCEEDED", "FAILED", "FAILED_SETUP", "FAILED_DRIVER", "CANCELLED")
"""SkyPilot's words for a job that has ended."""

TIME_UP = "time-up"
"""File among a job's logs: its time was up, and it has saved."""


class JobVerdict(Enum):
    """What to do next."""

    done = "done"
    preempted = "preempted"
    """The machine was told that it is taken away, and the job has saved."""
    lost = "lost"
    """A machine is gone, or does not answer."""
    time_up = "time up"
    """The job knew that its time was up, and has saved."""
    failed = "failed"

    @property
    def again(self) -> bool:
        """Whether the same on other machines may come to an end."""
        return self in (JobVerdict.preempted, JobVerdict.lost)


@dataclass(frozen=True, kw_only=True)
class End:
    """What is known when a job has ended, or is not heard of any more."""

    job: str
    """SkyPilot's word, or LOST."""

    cluster: str
    """UP, INIT, STOPPED or GONE."""

    result: dict[str, Any] | None
    errors: dict[int, RankError]


def verdict(end: End) -> JobVerdict:
    """Judge an end.

    SkyPilot's word alone is not enough: a job on a machine that is gone may be called failed, and so do workers whose
    peers are gone, in many words. Where all machines are there, the workers' own words count.
    """
    status = (end.result or {}).get("status")
    if status in ("completed", "paused") and (end.job == "SUCCEEDED" or end.cluster != "UP"):
        return JobVerdict.done
    if end.cluster != "UP" or end.job == "LOST":
        return JobVerdict.preempted if status == "preempted" else JobVerdict.lost
    if any(error.user for error in end.errors.values()):
        return JobVerdict.failed
    return JobVerdict.preempted if status == "preempted" else JobVerdict.failed
