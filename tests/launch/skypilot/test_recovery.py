"""What the SkyPilot launcher does about every kind of end, against a cluster that plays a script.

The script stands in for our own thin layer over SkyPilot (`cluster.Cluster`), so that dozens of ends take seconds; that
this layer is right is tested with the real SkyPilot in `tests/aws`.
"""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from skytune.common.background import Pending
from skytune.config import ComputeConfig, Detached, Preempted, RecoveryConfig, RunConfig, UserError, from_dict
from skytune.job import Job, JobDir, RankError
from skytune.launch.remote.offer import Offer
from skytune.launch.remote.s3_transfer import S3Transfer
from skytune.launch.skypilot import SkyPilotLauncher, cluster, launcher, monitor, recovery

exceptions = pytest.importorskip("sky.exceptions", reason="needs the extra aws")

PLAN = Offer(cloud="AWS", instance_type="m5.large", region="us-east-1", use_spot=True, gpus=0, hourly_usd=3.6)


@dataclass
class Act:
    """What becomes of one launch."""

    job: str = "SUCCEEDED"
    cluster: str = "UP"
    status: str | None = "completed"
    error: RankError | None = None
    no_machine: bool = False


@dataclass
class Script:
    """What the cluster does, and what was done to it."""

    acts: list[Act] = field(default_factory=lambda: [Act()])
    there: cluster.LastJob | None = None
    plan: Offer = PLAN
    transfer: S3Transfer | None = None
    down_fails: int = 0
    launching: Callable[[], None] = lambda: None
    launches: list[dict[str, Any]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    forgot: list[str] = field(default_factory=list)
    """Of which cluster all copies of secrets were deleted, at the end of each run."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """The script that the cluster plays."""
    played = Script()

    class Cluster(cluster.Cluster):
        def last_job(self, tick: Any) -> cluster.LastJob | None:
            return played.there

        def plan(self, task: dict[str, Any], tick: Any) -> Offer:
            return replace(played.plan, use_spot=task["resources"]["use_spot"])

        def launch(self, task: dict[str, Any], minutes: int, show: Any, tick: Any) -> int:
            played.launches.append(task)
            played.launching()
            tick()
            if played.acts[0].no_machine:
                played.acts.pop(0)
                history = [ValueError("us-east-1a: InsufficientInstanceCapacity")]
                raise exceptions.ResourcesUnavailableError("none", failover_history=history)
            return 1

        def launched(self, tick: Any) -> Offer:
            return played.plan

        def give_up_launch(self) -> None:
            played.done.append("gave up")

        def job_status(self, job: int, tick: Any) -> str:
            if played.acts[0].job == "LOST":
                raise RuntimeError("does not answer")
            return played.acts[0].job

        def state(self, tick: Any = None) -> str:
            return played.acts[0].cluster

        def tail(self, job: int, show: Any) -> Pending[int]:
            return Pending(lambda: 0, "log")

        def fetch(self, names: list[str], root: Path, tick: Any, nodes: slice = slice(0, 1)) -> None:
            act, job = played.acts[0], JobDir(root)
            played.done.append(f"fetched {' '.join(names)}") if played.transfer else None
            if act.status and "outputs" in names:
                job.write_result({"status": act.status, "world_size": 1, "steps": 5})
            if act.error and "outputs" in names:
                job.write_error(0, act.error)

        def touch(self, name: str, tick: Any) -> None:
            played.done.append(f"touched {name}")

        def so_far(self, job: int, tick: Any) -> dict[str, float]:
            return {"provision_s": 60.0, "job_s": 600.0, "idle_s": 300.0}

        def autodown(self, minutes: int) -> None:
            played.done.append(f"down in {minutes}")

        def down(self) -> None:
            if played.down_fails:
                played.down_fails -= 1
                raise RuntimeError("AWS says no")
            played.done.append("down")
            if played.launches and played.acts:
                played.acts.pop(0) if len(played.acts) > 1 else None

    monkeypatch.setattr(recovery, "Cluster", Cluster)
    monkeypatch.setattr(launcher.S3Transfer, "from_config", lambda config, key: played.transfer)
    monkeypatch.setattr(recovery, "stage", lambda job, folder, inputs=True: folder.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(recovery, "forget", lambda secrets: 0)
    monkeypatch.setattr(launcher, "forget", lambda secrets, ended: played.forgot.append(ended))
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(monitor.JobMonitor, "_sleep", lambda self, seconds: self.tick())
    return played


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., JobDir]:
    """Return a function that runs a job by the script."""

    def start(launch: dict[str, Any] | None = None, store: str | None = None, **compute: Any) -> JobDir:
        job = JobDir(tmp_path / "runs" / "a_run-0123456789ab")
        config = from_dict(RunConfig, {"launch": launch or {}, "checkpoint": {"store": store}})
        job.root.mkdir(parents=True, exist_ok=True)
        job.write_job(Job(kind="train", run_key="k", config=config, labels=["a", "b"]))
        SkyPilotLauncher({"infra": "aws"}).run(job, ComputeConfig(**compute))
        return job

    return start


LOST = Act(job="LOST", cluster="INIT", status=None)


def test_a_job_is_launched_once_and_its_machines_are_taken_down(script: Script, run: Callable[..., JobDir]) -> None:
    job = run(use_spot=True)
    assert len(script.launches) == 1 and script.done == ["down"] and script.forgot == ["skytune-a-run-0123456789ab"]
    result = job.read_result()
    assert result is not None and result["machine_attempts"] == 1 and result["cost"]["attempts"][0]["ended"] == "done"
    assert not (job.root / "upload").exists()


def test_lost_machines_are_replaced(script: Script, run: Callable[..., JobDir]) -> None:
    script.acts = [LOST, Act(status="preempted"), Act()]
    job = run(use_spot=True)
    assert len(script.launches) == 3 and script.done == ["down"] * 3
    result = job.read_result()
    assert result is not None
    assert [each["ended"] for each in result["cost"]["attempts"]] == ["lost", "preempted", "done"]
    ids = {task["envs"]["SKYTUNE_LAUNCH"] for task in script.launches}
    assert len(ids) == 1, "the next attempt takes over the checkpoints at once"


def test_they_are_replaced_a_bounded_number_of_times(script: Script, run: Callable[..., JobDir]) -> None:
    script.acts = [LOST]
    with pytest.raises(Preempted, match="lost 2 times"):
        run(use_spot=True, recovery=RecoveryConfig(max_attempts=2))
    assert len(script.launches) == 2 and script.done == ["down"] * 2


def test_a_mistake_is_not_tried_again(script: Script, run: Callable[..., JobDir]) -> None:
    script.acts = [Act(job="FAILED", status=None, error=RankError(type="ValueError", message="wrong", user=False))]
    with pytest.raises(UserError, match="ValueError: wrong"):
        run(use_spot=True)
    assert len(script.launches) == 1 and script.done == ["down"]


def test_without_spot_capacity_the_full_price_is_paid_only_if_asked_for(
    script: Script, run: Callable[..., JobDir]
) -> None:
    script.acts = [Act(no_machine=True), Act()]
    with pytest.raises(UserError, match="no machine could be had: us-east-1a: InsufficientInstanceCapacity"):
        run(use_spot=True)
    script.acts, script.launches = [Act(no_machine=True), Act()], []
    run(use_spot=True, recovery=RecoveryConfig(on_demand_fallback=True))
    assert [task["resources"]["use_spot"] for task in script.launches] == [True, False]


def test_taking_down_is_tried_again_and_then_named(script: Script, run: Callable[..., JobDir]) -> None:
    script.down_fails = 3
    run()
    assert script.done == ["down"]
    script.down_fails = 100
    with pytest.raises(UserError, match=r"\(AWS says no\): remove them with `sky down skytune-a-run-0123456789ab`"):
        run()


def test_why_a_job_failed_is_told_although_its_machines_cannot_be_taken_down(
    script: Script, run: Callable[..., JobDir], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    script.down_fails = 100
    script.acts = [Act(job="FAILED", status=None, error=RankError(type="ValueError", message="wrong", user=False))]
    with pytest.raises(UserError, match="may still run and cost money"):
        run()
    assert "ValueError: wrong" in caplog.text
    (file,) = tmp_path.rglob("cost.json")
    assert "down_s" in json.loads(file.read_text())["attempts"][0]["phases"], "what they have cost until then"
    script.acts = [Act(no_machine=True), Act()]
    with pytest.raises(UserError, match="may still run and cost money"):
        run()
    assert "no machine could be had: us-east-1a: InsufficientInstanceCapacity" in caplog.text


def test_what_is_too_dear_is_not_launched(script: Script, run: Callable[..., JobDir]) -> None:
    with pytest.raises(UserError, match=r"max_hourly_usd=5: .*costs \$7\.20 an hour"):
        run({"num_processes": 2}, num_nodes=2, max_hourly_usd=5.0)
    script.plan = replace(PLAN, hourly_usd=None)
    with pytest.raises(UserError, match="has no known price"):
        run(max_hourly_usd=5.0)
    assert not script.launches and not script.done


def test_machines_of_a_failed_job_are_kept_if_asked_for(
    script: Script, run: Callable[..., JobDir], caplog: pytest.LogCaptureFixture
) -> None:
    script.acts = [Act(job="FAILED", status=None)]
    with pytest.raises(UserError):
        run(keep_on_failure="30m")
    assert script.done == ["down in 30"]
    name = "skytune-a-run-0123456789ab"
    assert f"kept for 30 idle minutes ($3.60 an hour, $1.80 in all): `sky status` and then `ssh {name}`" in caplog.text
    assert f"`sky down {name}` ends it" in caplog.text


def test_machines_that_cannot_be_kept_are_taken_down(
    script: Script, run: Callable[..., JobDir], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(cluster: Any, minutes: int) -> None:
        raise RuntimeError("does not answer")

    monkeypatch.setattr(recovery.Cluster, "autodown", refuse)
    script.acts = [Act(job="FAILED", status=None)]
    with pytest.raises(UserError):
        run(keep_on_failure="30m")
    assert script.done == ["down"] and "cannot keep the machines (does not answer)" in caplog.text


def test_machines_of_a_job_that_was_stopped_are_not_kept(script: Script, run: Callable[..., JobDir]) -> None:
    script.launching = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(keep_on_failure="30m")
    assert script.done == ["gave up", "down"]


def test_a_stop_while_machines_come_up_ends_the_launch(script: Script, run: Callable[..., JobDir]) -> None:
    script.launching = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert script.done == ["gave up", "down"]
    script.launching = lambda: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted, match="before training began"):
        run()


def test_a_job_is_left_alone_if_asked_for_and_found_again(script: Script, run: Callable[..., JobDir]) -> None:
    name = "skytune-a-run-0123456789ab"
    message = (
        rf"the cluster {name}, .* 10 minutes after .* same command without launch\.detach .*`sky down {name}` stops it"
    )
    with pytest.raises(Detached, match=message):
        run({"detach": True})
    assert script.done == [] and script.forgot == [""], "machines still need what SkyPilot keeps of them"
    script.there = cluster.LastJob("UP", 1, "train", runs=True)
    job = run()
    assert len(script.launches) == 1 and script.done == ["down"]
    result = job.read_result()
    assert result is not None
    found = result["cost"]["phases"]
    assert (found["provision_s"], found["job_s"]) == (60.0, 600.0), "what it took before anybody came counts"
    assert found["idle_s"] >= 300.0 and result["phases"]["idle_s"] == found["idle_s"]
    assert result["cost"]["usd"] == pytest.approx(960 / 1000, abs=0.1)


def test_what_is_left_of_a_failed_launch_is_taken_down_first(script: Script, run: Callable[..., JobDir]) -> None:
    script.there = cluster.LastJob("INIT")
    run()
    assert script.done == ["down", "down"] and len(script.launches) == 1


class Bucket:
    """Stands in for `S3Transfer`, which is tested with a real protocol: what lies in the store, and what was done."""

    url = "s3://bucket/runs"

    def __init__(self, left: bool = False) -> None:
        self.there, self.done = left, list[str]()

    def upload_inputs(self, inputs: Path, listing: Path) -> int:
        self.done.append("sent")
        return 5

    def listed_outputs(self) -> dict[int, dict[str, Any]]:
        return {0: {"files": ["result.json"], "code": None}} if self.there else {}

    def download_outputs(self, job: JobDir) -> bool:
        if "sent" in self.done or self.there:
            job.write_result({"status": "completed", "world_size": 1, "steps": 5})
            return True
        return False

    def delete_outputs(self) -> None:
        self.done.append("forgot")
        self.there = False


def test_outputs_in_the_store_need_no_machine_any_more(script: Script, run: Callable[..., JobDir]) -> None:
    bucket = Bucket()
    script.transfer = bucket  # type: ignore[assignment]
    run(store="s3://bucket/runs")
    assert bucket.done == ["sent", "forgot", "forgot"] and script.done == ["down"], "nothing was fetched from machines"


def test_results_of_a_job_that_outlived_its_driver_and_its_machines_are_taken(
    script: Script, run: Callable[..., JobDir]
) -> None:
    bucket = Bucket(left=True)
    script.transfer = bucket  # type: ignore[assignment]
    job = run(store="s3://bucket/runs")
    assert not script.launches and not script.done and bucket.done == ["forgot"]
    result = job.read_result()
    assert result is not None and result["cost_usd"] == "n/a", "what nobody saw is not free"
    run(store="s3://bucket/runs")
    assert len(script.launches) == 1, "a run that was handed out runs again"
