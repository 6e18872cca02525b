"""Searches on machines: what they may cost, and that they stay from one trial to the next."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skytune.common.background import Pending
from skytune.config import ConfigError, RunConfig
from skytune.job import JobDir
from skytune.launch import LocalLauncher
from skytune.launch.remote.offer import Offer
from skytune.launch.skypilot import cluster, kept, launcher, monitor, recovery
from skytune.pricing import catalog
from skytune.search import run_search
from skytune.search.machines import Machines


def machines(
    design: Any, stack: dict[str, Any] | None = None, compute: dict[str, Any] | None = None, **search: Any
) -> Any:
    asked = {"machines": 2, "max_usd": 1.0, "trials": 3, **search}
    return Machines(design({"compute": {"device": "auto", **(compute or {})}}, **asked), stack or {})


def test_the_price_is_the_most_that_an_hour_of_all_nodes_costs(design: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {("g5.xlarge", True, "us-east-1"): 0.4, ("g5.xlarge", False, "us-east-1"): 1.0}
    monkeypatch.setattr(catalog, "catalog_price", lambda *asked: prices.get(asked))
    stack = {"infra": "aws/us-east-1", "instance_type": "g5.xlarge", "use_spot": True}
    assert machines(design, stack).price.usd_per_hour == 0.4
    assert machines(design, stack, {"num_nodes": 3}).price.usd_per_hour == pytest.approx(1.2)
    # Where the full price may be paid, it is the full price.
    full = {"recovery": {"on_demand_fallback": True}}
    assert machines(design, stack, full).price.usd_per_hour == 1.0
    # A machine that the catalog does not list there, or any of a kind: what the user allows.
    elsewhere = {"region": "eu-north-1", "max_hourly_usd": 3.0}
    assert machines(design, stack, elsewhere).price.usd_per_hour == 3.0
    assert machines(design, {"accelerators": "A10G:1"}, {"max_hourly_usd": 2.0}).price.usd_per_hour == 2.0
    assert machines(design, {}, {"usd_per_hour": 0.5, "num_nodes": 2}).price.usd_per_hour == 1.0


def test_what_cannot_be_kept_is_refused(design: Any) -> None:
    with pytest.raises(ConfigError, match=r"give compute.instance_type and compute.region, or compute.max_hourly_usd"):
        machines(design, {"accelerators": "A10G:1"})
    with pytest.raises(ConfigError, match=r"ml.g5.xlarge is SageMaker's; take an instance type of EC2"):
        machines(design, {"sagemaker_role": "arn"}, {"instance_type": "ml.g5.xlarge"})
    with pytest.raises(ConfigError, match=r"give checkpoint.store=s3://BUCKET/PATH"):
        machines(design, {}, {"usd_per_hour": 0.5}, trials=9, halving=3)
    machines(design, {"store": "s3://bucket/runs"}, {"usd_per_hour": 0.5}, trials=9, halving=3)
    with pytest.raises(ConfigError, match=r"compute.local=true exclude each other"):
        machines(design, {}, {"usd_per_hour": 0.5, "local": True})
    dear = machines(design, {}, {"usd_per_hour": 30.0})
    dear.check_budget(0.4)
    with pytest.raises(ConfigError, match=r"search.max_usd=1: no trial can begin: \$0.60 are spent, .* \(\$0.50\)"):
        dear.check_budget(0.6)


class Cloud:
    """Stands in for our thin layer over SkyPilot (`cluster.Cluster`): what it "launches" is trained on this machine.
    That the layer itself is right is tested with the real SkyPilot in `tests/aws`."""

    def __init__(self, warm: Callable[[], LocalLauncher], lost_jobs: Sequence[int] = ()) -> None:
        self.warm, self.lost_jobs = warm, lost_jobs
        self.up: dict[str, dict[str, Any]] = {}
        self.began: list[float] = []
        self.paid_s = 0.0
        self.jobs: list[str] = []

    def down(self, name: str) -> None:
        if name in self.up:
            self.paid_s += time.monotonic() - self.up.pop(name)["began"]


@pytest.fixture
def cloud(warm: Callable[[], LocalLauncher], monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A cloud to launch on."""
    made = Cloud(warm)
    offer = Offer(cloud="AWS", instance_type="m5.large", region="us-east-1", use_spot=True, gpus=0, hourly_usd=3600.0)

    class FakeCluster(cluster.Cluster):
        def last_job(self, tick: Any) -> cluster.LastJob | None:
            return made.up[self.name]["last"] if self.name in made.up else None

        def plan(self, task: dict[str, Any], tick: Any) -> Offer:
            return offer

        def launch(self, task: dict[str, Any], minutes: int, show: Any, tick: Any) -> int:
            if self.name not in made.up:
                made.began.append(time.monotonic())
                made.up[self.name] = {"began": time.monotonic()}
            made.jobs.append(self.name)
            here = made.up[self.name]
            here["last"] = cluster.LastJob("UP", len(made.jobs), task["name"], succeeded=True)
            job = JobDir(Path(task["workdir"]) / "job")
            if len(made.jobs) in made.lost_jobs:
                made.down(self.name)
            else:
                made.warm().run(job, job.job.config.compute)
            return here["last"].number

        def launched(self, tick: Any) -> Offer | None:
            return offer if self.name in made.up else None

        def clear(self, tick: Any) -> None:
            pass

        def job_status(self, job: int, tick: Any) -> str:
            return "SUCCEEDED" if self.name in made.up else "GONE"

        def state(self, tick: Any = None) -> str:
            return "UP" if self.name in made.up else "GONE"

        def tail(self, job: int, show: Any) -> Pending[int]:
            return Pending(lambda: 0, "log")

        def fetch(self, names: list[str], root: Path, tick: Any, nodes: slice = slice(0, 1)) -> None:
            shutil.copytree(root / "upload/job/outputs", root / "outputs", dirs_exist_ok=True)

        def down(self) -> None:
            made.down(self.name)

    for room in (recovery, kept):
        monkeypatch.setattr(room, "Cluster", FakeCluster)
    monkeypatch.setattr(launcher, "check_store_remote", lambda config: None)
    monkeypatch.setattr(monitor.JobMonitor, "_sleep", lambda self, seconds: self.tick())
    return made


def on_machines(design: Any, store: Path, **search: Any) -> RunConfig:
    found: RunConfig = design(
        {"compute": {"instance_type": "m5.large", "usd_per_hour": 3600.0}, "checkpoint": {"store": str(store)}},
        **{"machines": 2, "max_usd": 10_000.0, "trials": 6, "halving": 3, **search},
    )
    return found


@pytest.mark.timeout(300)
def test_two_machines_take_all_trials_and_a_lost_one_is_replaced(design: Any, cloud: Cloud, tmp_path: Path) -> None:
    cloud.lost_jobs = [4]
    search = run_search(on_machines(design, tmp_path / "store"))
    assert [len(search.record.standing(rung)) for rung in range(2)] == [6, 2]
    assert len(cloud.jobs) == 9 and len(cloud.began) == 3, "eight legs and one again; two machines and one again"
    assert not cloud.up, "none is left"
    assert search.spent() == pytest.approx(cloud.paid_s, rel=0.1), "every second is paid for once"
    for trial in search.record.trials:
        steps = [passed["resumed_from"] for passed in search.record.row(trial.cells[0])["scores"]]
        assert steps in ([None], [None, 3])


def test_machines_of_a_driver_that_was_killed_are_used_again(
    design: Any, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kept.KeptClusters, "close", lambda self: None)
        patch.setattr(kept.KeptClusters, "shrink", lambda self, most: None)
        run_search(on_machines(design, tmp_path / "store", trials=3))
    assert len(cloud.up) == 2
    search = run_search(on_machines(design, tmp_path / "store", trials=6))
    assert len(cloud.began) == 2 and not cloud.up and len(cloud.jobs) >= 8
    assert search.spent() == pytest.approx(cloud.paid_s, rel=0.1)
    run_search(on_machines(design, tmp_path / "store", trials=6))
    assert len(cloud.began) == 2, "nothing is left to do: nothing is brought up"
