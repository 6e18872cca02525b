"""Training jobs on the stand-in: real requests, containers, signals. Each trains a tiny model."""

import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from training_fixtures import Here

from skytune.config import Preempted, UserError, WorkerError

pytestmark = pytest.mark.slow

WAIT = {"wait": {"_target_": "waiting.Wait", "seconds": 0.02}}
LONG = {"max_steps": 100, "callbacks": WAIT}


def weights(done: Any) -> str:
    file = Path(done.result["run_folder"]) / "outputs" / "model" / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def announced(shown: str) -> int:
    """Return the last step that was shown."""
    return max(map(int, re.findall(r"step (\d+)/100", shown)))


def test_a_spot_interruption_at_step_30_of_100_changes_no_bit(
    sage: Any, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sage.standin.when = {r"step 30/100": sage.standin.interrupt}
    done = sage.train(**LONG, compute={"use_spot": True})
    (job,) = sage.standin.jobs.values()
    assert (job.starts, job.signals, job.status) == (2, ["SIGTERM"], "Completed")
    assert done.result["resumed_from"] >= 30
    (attempt,) = done.result["cost"]["attempts"]
    assert attempt["machine"] == "ml.m5.large (spot, SageMaker us-east-1)"
    assert attempt["phases"]["job_s"] == pytest.approx(0.3 * job.trained, abs=1.0)  # billable seconds, not those it ran
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "elsewhere"))
    local = sage.train(Here(), **LONG, checkpoint={"store": str(tmp_path / "store")})
    assert weights(local) == weights(done)
    assert local.result["run_key"] == done.result["run_key"]


def test_two_instances_train_together_and_leave_a_model_and_nothing_secret(
    sage: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-0123456789")
    done = sage.train(compute={"num_nodes": 2}, launch={"num_processes": 2}, sagemaker={"price_per_hour": 360.0})
    (job,) = sage.standin.jobs.values()
    assert (done.result["world_size"], len(job.hosts), job.status) == (2, 2, "Completed")
    assert all("canary" not in str(body) for _, body in sage.standin.requests)
    secret = sage.sent("CreateTrainingJob")[0]["Environment"]["SKYTUNE_SECRET"]
    assert secret == job.name
    left = sage.stored()
    (model,) = [key for key in left if key.endswith("model.tar.gz")]
    data = sage.standin.client.get_object(Bucket=sage.bucket, Key=model)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
    assert "model.safetensors" in names and not any("step-" in name or "optimizer" in name for name in names)
    assert any(re.search(r"/step-\d+/manifest.json$", key) for key in left)
    assert not [key for key in left if ".launch" in key or ".outputs" in key]
    assert done.result["cost_usd"] == pytest.approx(2 * round(job.trained + 0.5) * 0.1, abs=0.2)
    assert sage.standin.running() == []
    shown = capfd.readouterr().out
    assert "training 10 steps" in shown and "canary" not in shown


def press_ctrl_c(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def stop_in_the_console(job: Any) -> None:
    """As somebody else does, who knows nothing of this process."""
    boto3.client("sagemaker").stop_training_job(TrainingJobName=job.name)


@pytest.mark.parametrize(
    ("stop", "ends"), [(press_ctrl_c, KeyboardInterrupt), (stop_in_the_console, Preempted)], ids=["ctrl-c", "console"]
)
def test_a_job_that_is_stopped_saves_what_was_announced_and_leaves_nothing(
    sage: Any, capfd: pytest.CaptureFixture[str], stop: Any, ends: type[BaseException]
) -> None:
    sage.standin.when = {r"step 30/100": stop}
    with pytest.raises(ends):
        sage.train(**LONG)
    (job,) = sage.standin.jobs.values()
    assert (job.status, job.secondary, job.signals) == ("Stopped", "Stopped", ["SIGTERM"])
    assert sage.standin.running() == []
    saved = max(int(found[1]) for key in sage.stored() if (found := re.search(r"/step-(\d+)/manifest.json", key)))
    assert 30 <= announced(capfd.readouterr().out) <= saved < 100


def test_the_next_job_goes_on_where_maxruntime_ended_one(sage: Any, caplog: pytest.LogCaptureFixture) -> None:
    sage.standin.when = {r"step 30/100": sage.standin.time_up}
    with caplog.at_level("WARNING"):
        done = sage.train(**LONG)
    first, second = sage.standin.jobs.values()
    assert (first.status, first.secondary, second.status) == ("Stopped", "MaxRuntimeExceeded", "Completed")
    assert any("its time is up: the next one goes on from there" in text for text in caplog.messages)
    assert done.result["steps"] == 100 and done.result["resumed_from"] >= 30
    assert len(done.result["cost"]["attempts"]) == 2


DRIVER = """
import sys
sys.path[:0] = {path!r}
from skytune.job import JobDir
from skytune.aws.sagemaker import launcher
from pathlib import Path
job = JobDir(Path({folder!r}))
launcher().run(job, job.job.config.compute)
"""


def test_a_job_whose_driver_was_killed_is_found_by_the_next_run(
    sage: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        """The driver is no more."""

    class ByAnother:
        def run(self, job: Any, compute: Any) -> None:
            code = DRIVER.format(path=[path for path in sys.path if path], folder=str(job.root))
            driver = subprocess.Popen([sys.executable, "-c", code])
            while not any(each.secondary == "Training" for each in sage.standin.jobs.values()):
                assert driver.poll() is None
                time.sleep(0.1)
            driver.kill()
            driver.wait()
            raise Killed

    # It begins in the second region: the first has no machines, and the second was asked for.
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    far = f"{sage.bucket}-far"[-60:]
    sage.standin.client.create_bucket(Bucket=far, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    near = f"{sage.bucket}-near"[-60:]
    sage.standin.client.create_bucket(Bucket=near, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    sage.standin.no_capacity = {("us-west-2", False)}
    asked = {"regions": {"eu-west-1": f"s3://{far}/runs"}}
    again = {**LONG, "sagemaker": asked, "checkpoint": {"store": f"s3://{near}/runs"}}
    with pytest.raises(Killed):
        sage.train(ByAnother(), **again)
    (running,) = sage.standin.running()
    sage.standin.no_capacity = set()
    with caplog.at_level("INFO"):
        done = sage.train(**again)
    assert f"attaching to the job that runs already: {running} in eu-west-1" in caplog.text
    assert [(job.region, job.status) for job in sage.standin.jobs.values()] == [
        ("us-west-2", "Failed"),
        ("eu-west-1", "Completed"),
    ]
    assert done.result["status"] == "completed" and sage.standin.running() == []


def test_a_container_that_fails_at_import_says_its_last_lines(sage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from skytune.launch.sagemaker import launcher

    stage = launcher.stage

    def broken(job: Any, folder: Path, **more: Any) -> None:
        stage(job, folder, **more)
        with (folder / "code" / "skytune" / "__init__.py").open("a") as file:
            file.write("\nimport no_such_kernel\n")

    monkeypatch.setattr(launcher, "stage", broken)
    with pytest.raises(WorkerError) as caught:
        sage.train()
    assert "the container ended before training began (AlgorithmError:" in str(caught.value)
    assert str(caught.value).splitlines()[-1].strip() == "ModuleNotFoundError: No module named 'no_such_kernel'"
    assert len(sage.standin.jobs) == 1 and sage.standin.running() == []  # a bug is not tried again


def test_without_machines_every_region_is_tried_once_and_named(sage: Any) -> None:
    sage.standin.no_capacity = {("us-east-1", False), ("us-east-1", True)}
    with pytest.raises(UserError, match=r"no machine could be had: us-east-1: CapacityError: Unable to provision"):
        sage.train()
    assert len(sage.standin.jobs) == 1
    with pytest.raises(UserError, match="us-east-1: waited in vain"):
        sage.train(compute={"use_spot": True})
    with pytest.raises(UserError, match="us-east-1: CapacityError"):
        sage.train(compute={"use_spot": True, "recovery": {"on_demand_fallback": True}})
    assert [job.spot for job in sage.standin.jobs.values()] == [False, True, True, False]
    assert not [key for key in sage.stored() if ".launch" in key]


def test_other_code_in_the_bucket_is_not_run(sage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from skytune.launch.sagemaker.jobs import TrainingJobs

    create = TrainingJobs.create

    def tampered(jobs: Any, request: Any) -> None:
        (key,) = [key for key in sage.stored() if key.endswith("entry.py")]
        sage.standin.client.put_object(Bucket=sage.bucket, Key=key, Body=b"print('code of somebody else')")
        create(jobs, request)

    monkeypatch.setattr(TrainingJobs, "create", tampered)
    with pytest.raises(WorkerError, match="not the code that was sent") as failed:
        sage.train()
    assert "somebody else" not in str(failed.value)
