"""SkyPilot's managed jobs, with the edge of its SDK recorded: its own classes, statuses and checks of tasks are real,
what its server would answer to `sky.jobs.*` is played. No controller was run.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skytune.config import (
    ComputeConfig,
    Detached,
    Preempted,
    RecoveryConfig,
    RecoveryMode,
    RunConfig,
    UserError,
    from_dict,
)
from skytune.job import Job, JobDir
from skytune.launch.skypilot import SkyPilotLauncher, attempt, attempts, launcher, managed
from skytune.launch.skypilot.choosing import Plan

sky = pytest.importorskip("sky", reason="needs the extra aws")

from sky.jobs.state import ManagedJobStatus as Status  # noqa: E402
from sky.schemas.api.responses import ManagedJobRecord  # noqa: E402

PLAN = Plan(cloud="AWS", instance_type="m5.large", region="us-east-1", use_spot=True, gpus=0, hourly_usd=3.6)
NAME = "skytune-a-run-0123456789ab"
STORE = "s3://bucket/runs"


@dataclass
class Server:
    """What SkyPilot's server would say, one status a question, and what it was asked."""

    says: list[dict[str, Any]]
    asked: list[str] = field(default_factory=list)
    tasks: list[Any] = field(default_factory=list)
    left: bool = True
    """Whether the machines leave results in the store."""
    cancelled: bool = False
    there: bool = False
    """Whether the job is known before it is launched."""
    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    """What happens at which question."""
    count: int = 0
    forgot: list[str] = field(default_factory=list)

    def launch(self, task: Any, name: str) -> Callable[[], Any]:
        self.asked.append(f"launch {name}")
        self.tasks.append(task)
        self.there = True
        return lambda: ([7], None)

    def queue_v2(self, refresh: bool, job_ids: list[int] | None) -> Callable[[], Any]:
        assert refresh is False, "a stopped controller is not woken up by a question"
        others = ManagedJobRecord(job_id=6, job_name="other", status=Status.RUNNING)
        if not self.there:
            return lambda: ([others], 1, {}, 1)
        self.count += 1
        self.at.get(self.count, lambda: None)()
        values = self.says[0] if len(self.says) == 1 else self.says.pop(0)
        if self.cancelled:
            values = {"status": Status.CANCELLED}
        found = ManagedJobRecord(
            job_id=7,
            job_name=NAME,
            submitted_at=100.0,
            start_at=160.0,
            cloud="AWS",
            region="us-east-1",
            cluster_resources="1x[CPU:2]m5.large[Spot]",
            **values,
        )
        return lambda: ([found], 1, {}, 1)

    def cancel(self, job_ids: list[int]) -> Callable[[], Any]:
        self.asked.append(f"cancel {job_ids}")
        self.cancelled = True
        return lambda: None

    def tail_logs(self, job_id: int, follow: bool, output_stream: Any) -> int:
        output_stream.write(f"(train, pid=12) training 5 steps of job {job_id}\n")
        return 0


class Bucket:
    url = STORE

    def __init__(self, server: Server) -> None:
        self.server = server

    def send(self, inputs: Path, listing: Path) -> int:
        return 0

    def left(self) -> dict[int, Any]:
        return {}

    def collect(self, job: JobDir) -> bool:
        if self.server.left and not self.server.cancelled:
            job.write_result({"status": "completed", "world_size": 1, "steps": 5})
        return self.server.left

    def forget(self) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    played = Server([{"status": word} for word in (Status.PENDING, Status.STARTING, Status.RUNNING, Status.SUCCEEDED)])
    for name in ("launch", "queue_v2", "cancel", "tail_logs"):
        monkeypatch.setattr(sky.jobs, name, getattr(played, name))
    monkeypatch.setattr(sky, "get", lambda request: request())
    monkeypatch.setattr(sky, "stream_and_get", lambda request, output_stream: request())
    monkeypatch.setattr(managed.ManagedJob, "plan", lambda self, task, tick: PLAN)
    monkeypatch.setattr(attempts, "stage", lambda job, folder, inputs=True: folder.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(attempts, "forget", lambda secrets: 0)
    monkeypatch.setattr(launcher, "forget", lambda secrets, ended: played.forgot.append(ended))
    monkeypatch.setattr(launcher.Passing, "of", lambda config, key: Bucket(played) if config.checkpoint.store else None)
    monkeypatch.setattr(attempt.Following, "_sleep", lambda self, seconds: self.tick())
    yield played


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., JobDir]:
    def start(
        launch: dict[str, Any] | None = None,
        store: str | None = STORE,
        recovery: dict[str, Any] | None = None,
        **compute: Any,
    ) -> JobDir:
        job = JobDir(tmp_path / "runs" / "a_run-0123456789ab")
        config = from_dict(RunConfig, {"launch": launch or {}, "checkpoint": {"store": store}})
        job.root.mkdir(parents=True, exist_ok=True)
        job.write_job(Job(kind="train", run_key="k", config=config, labels=["a", "b"]))
        asked = RecoveryConfig(mode=RecoveryMode.managed, **(recovery or {}))
        SkyPilotLauncher({"infra": "aws"}).run(job, ComputeConfig(recovery=asked, **compute))
        return job

    return start


def test_the_job_is_skypilots_and_its_results_come_through_the_store(
    server: Server, run: Callable[..., JobDir], capfd: pytest.CaptureFixture[str]
) -> None:
    job = run(use_spot=True)
    assert server.asked == [f"launch {NAME}"], "what has ended is not cancelled"
    (task,) = server.tasks
    (resources,) = task.resources
    assert resources.use_spot and resources.job_recovery == {
        "strategy": "EAGER_NEXT_REGION",
        "max_restarts_on_errors": 0,
        "recover_on_exit_codes": [75],
    }
    assert task.envs["SKYTUNE_MANAGED"] == "1"
    result = job.read_result()
    assert result is not None and result["status"] == "completed"
    assert {"provision_s", "job_s"} <= set(result["cost"]["attempts"][0]["phases"])
    assert "training 5 steps of job 7" in capfd.readouterr().out


def test_machines_that_are_replaced_are_told_of_and_not_launched_again(
    server: Server, run: Callable[..., JobDir], caplog: pytest.LogCaptureFixture
) -> None:
    words = (Status.RUNNING, Status.RECOVERING, Status.RUNNING, Status.SUCCEEDED)
    server.says = [{"status": word, "recovery_count": number} for number, word in zip((0, 0, 1, 1), words, strict=True)]
    run(use_spot=True)
    assert server.asked == [f"launch {NAME}"]
    assert "SkyPilot's recovery 1 goes on from the last checkpoint" in caplog.text


def test_they_are_replaced_a_bounded_number_of_times(server: Server, run: Callable[..., JobDir]) -> None:
    server.says = [{"status": Status.RUNNING, "recovery_count": 0}, {"status": Status.RUNNING, "recovery_count": 2}]
    with pytest.raises(Preempted, match="taken away or lost 2 times"):
        run(use_spot=True, recovery={"max_attempts": 2})
    assert server.asked == [f"launch {NAME}", "cancel [7]"]


def test_without_spot_capacity_skypilot_may_take_others_at_the_full_price(
    server: Server, run: Callable[..., JobDir]
) -> None:
    run(use_spot=True, recovery={"on_demand_fallback": True})
    assert sorted(each.use_spot for each in server.tasks[0].resources) == [False, True]


def test_why_it_failed_is_said(server: Server, run: Callable[..., JobDir]) -> None:
    server.says, server.left = [{"status": Status.FAILED_NO_RESOURCE, "failure_reason": "no m5.large\nanywhere"}], False
    with pytest.raises(UserError, match=f"job {NAME} has ended: FAILED_NO_RESOURCE: no m5.large anywhere"):
        run()


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Preempted)], ids=["sigint", "sigterm"]
)
def test_a_stop_cancels_it(
    server: Server,
    run: Callable[..., JobDir],
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    server.says = [{"status": Status.RUNNING}]
    server.at = {3: lambda: signal.raise_signal(number)}
    with pytest.raises(error):
        run()
    assert server.asked == [f"launch {NAME}", "cancel [7]"]


def test_it_is_left_alone_if_asked_for_and_found_again(server: Server, run: Callable[..., JobDir]) -> None:
    with pytest.raises(Detached, match=rf"managed job {NAME}.*`sky jobs cancel --name {NAME}` stops it"):
        run({"detach": True})
    assert server.asked == [f"launch {NAME}"]
    server.says = [{"status": Status.RUNNING}] * 4 + [{"status": Status.SUCCEEDED}]
    job = run()
    assert server.asked == [f"launch {NAME}"], "the same command attaches"
    result = job.read_result()
    assert result is not None and result["cost"]["phases"]["provision_s"] >= 60.0
    assert result["cost_usd"] == "n/a", "from here the price of a job that runs already is not known"


def test_what_it_cannot_do_is_refused_before_anything_is_asked(server: Server, run: Callable[..., JobDir]) -> None:
    with pytest.raises(UserError, match=r"compute\.recovery\.mode=managed: .* give a bucket .*checkpoint\.store=s3://"):
        run(store=None)
    with pytest.raises(UserError, match=r"compute\.keep_on_failure needs compute\.recovery\.mode=relaunch"):
        run(keep_on_failure="30m")
    with pytest.raises(UserError, match=r"max_hourly_usd=1: .*costs \$3\.60 an hour"):
        run(max_hourly_usd=1.0)
    assert not server.asked
