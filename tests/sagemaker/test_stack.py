"""Role, quota and end of a stack's training jobs, on the stand-in; containers here are a few lines of shell."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skytune.aws import account, policies, preflight, role, sagemaker, stack
from skytune.aws.names import Names
from skytune.common.findings import Level
from skytune.config import RunConfig, UserError, from_dict
from skytune.launch.sagemaker import TrainingJobs
from skytune.launch.sagemaker.request import JobPlace, job_name, training_job

QUICK = ["sh", "-c", "echo trained; echo x > /opt/ml/model/x"]
PATIENT = ["sh", "-c", "trap 'echo saved; exit 0' TERM; echo waiting; while :; do sleep 0.1; done"]


@pytest.fixture
def there(sage: Any) -> Iterator[tuple[Any, Any, Names]]:
    """The stand-in, the account, and a stack that is registered with SageMaker's role."""
    opened = account.connect("us-east-1")
    names = Names(stack="aws", account=opened.id, region=opened.region)
    with account.spoken():
        stack.ensure(opened, names, 30, lambda thing: None, sagemaker=True)
        # It refuses plain HTTP, which is all that the stand-in speaks.
        opened.client("s3").delete_bucket_policy(Bucket=names.bucket)
    yield sage.standin, opened, names


def begin(opened: Any, names: Names, stamp: str, role_arn: str = "", **asked: Any) -> tuple[TrainingJobs, str]:
    """Begin a job; return its region's jobs and its name."""
    config = from_dict(RunConfig, {"compute": {"instance_type": "ml.m5.large"}, "sagemaker": asked})
    key, place = "a-run-0123456789ab", JobPlace("us-east-1", role_arn or names.sagemaker_role_arn, names.store)
    name = job_name(key, stamp)
    jobs = TrainingJobs(sagemaker.CLOUD, opened, "us-east-1")
    jobs.create(training_job(config, config.compute, place, key, name, launch_id="0", spot=False))
    return jobs, name


def wait(jobs: TrainingJobs, name: str, true: Callable[[Any], bool]) -> Any:
    while not true(state := jobs.state(name)):
        assert state.status in ("InProgress", "Stopping"), state
        time.sleep(0.05)
    return state


def test_the_execution_role_is_sagemakers_alone_and_made_once(there: tuple[Any, Any, Names]) -> None:
    _, opened, names = there
    found = opened.client("iam").get_role(RoleName=names.sagemaker_role)["Role"]
    assert found["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert role.policy_of(opened, names.sagemaker_role) == policies.sagemaker(names)
    assert [done.verb for done in role.ensure_sagemaker(opened, names)] == ["found"]
    actions = [each["Action"] for each in policies.sagemaker(names)["Statement"] if each["Effect"] == "Allow"]
    assert not [name for listed in actions for name in listed if "*" in name or name.startswith(("iam:", "ec2:"))]
    assert len(json.dumps(policies.sagemaker(names))) <= 10240  # IAM's limit for a role's inline policies


def test_check_refuses_a_quota_that_is_too_small_before_anything_is_paid(there: tuple[Any, Any, Names]) -> None:
    standin, opened, names = there
    standin.quota = {"ml.m5.large": 2, "ml.g5.2xlarge": 0}

    def findings(kind: str, **more: Any) -> dict[str, Any]:
        machine = {"instance_type": kind, **more}
        return {each.name: each for each in preflight.examine(opened, names, machine, True, time.monotonic() + 60)}

    found = findings("ml.g5.2xlarge")
    assert found["quota"].level is Level.fail
    assert "'ml.g5.2xlarge for training job usage': 0, 0 in use, 1 needed" in found["quota"].text
    assert found["role"].level is found["bucket"].level is found["machine"].level is Level.ok
    assert "$1.51 an hour" in found["price"].text
    standin.entry = PATIENT
    jobs, name = begin(opened, names, "1")
    found = findings("ml.m5.large", num_nodes=2)
    assert "2, 1 in use, 2 needed" in found["quota"].text and found["quota"].level is Level.fail
    assert findings("ml.m5.large")["quota"].level is Level.ok
    standin.quota = {"ml.m5.large": 1}
    with pytest.raises(UserError, match=r"the quota 'ml\.m5\.large for training job usage' does not allow 1 more"):
        begin(opened, names, "2")
    assert jobs.end(name, wait=0.05)


def test_destroy_ends_jobs_and_warm_pools_of_the_stack_alone(there: tuple[Any, Any, Names]) -> None:
    standin, opened, names = there
    standin.entry = PATIENT
    jobs, runs = begin(opened, names, "1")
    jobs, foreign = begin(opened, names, "2", role_arn=f"arn:aws:iam::{opened.id}:role/somebody-elses")
    for name in (runs, foreign):
        wait(jobs, name, lambda state: state.secondary == "Training")
    standin.entry = QUICK
    jobs, pooled = begin(opened, names, "3", keep_alive="1h")
    wait(jobs, pooled, lambda state: state.status == "Completed")
    jobs.hide(runs, {"HF_TOKEN": "canary"})
    assert set(standin.running()) == {pooled, runs, foreign}
    lines = [str(done) for done in sagemaker.remove(opened, names)]
    assert [line.split()[:2] for line in lines] == [["removed", "job"], ["removed", "warm"]]
    assert standin.running() == [foreign]
    assert opened.client("secretsmanager").list_secrets()["SecretList"] == []
    stack.remove(opened, names, lambda thing: None)
    assert not role.exists(opened, names.sagemaker_role)
    assert jobs.end(foreign, wait=0.05)


def test_a_job_like_it_takes_over_machines_that_were_kept(there: tuple[Any, Any, Names]) -> None:
    standin, opened, names = there
    standin.entry = QUICK
    jobs, first = begin(opened, names, "1", keep_alive="1h")
    wait(jobs, first, lambda state: state.status == "Completed")
    assert jobs.pooled("skytune-") == [first]
    jobs, second = begin(opened, names, "2", keep_alive="1h")
    wait(jobs, second, lambda state: state.status == "Completed")
    assert jobs.pooled("skytune-") == [second] and standin.jobs[first].pool == "Reused"
    jobs.give_back(second)
    assert standin.running() == [] and jobs.pooled("skytune-") == []


def test_a_job_that_does_not_end_is_killed_after_its_time(there: tuple[Any, Any, Names]) -> None:
    standin, opened, names = there
    standin.entry, standin.grace = ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"], 0.3
    jobs, name = begin(opened, names, "1")
    lines: list[str] = []
    while "deaf" not in lines:
        lines += jobs.lines(name)
        time.sleep(0.05)
    assert jobs.end(name, wait=0.05)
    assert standin.jobs[name].signals == ["SIGTERM", "SIGKILL"]
    assert jobs.state(name).secondary == "Stopped"


def test_a_bucket_of_another_region_is_refused_by_the_service(there: tuple[Any, Any, Names], tmp_path: Path) -> None:
    _, opened, names = there
    config = from_dict(RunConfig, {"compute": {"instance_type": "ml.m5.large"}})
    place = JobPlace("eu-west-1", names.sagemaker_role_arn, names.store)
    request = training_job(
        config, config.compute, place, "a-run-0", job_name("a-run-0", "1"), launch_id="0", spot=False
    )
    with pytest.raises(UserError, match="is in us-east-1, the training job in eu-west-1"):
        TrainingJobs(sagemaker.CLOUD, opened, "eu-west-1").create(request)
