"""The stack command on the stand-in for AWS: what it makes is what SkyPilot's machines get, and nothing is left."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("farm")
from farm import Farm
from warmed import python

SRC = Path(__file__).resolve().parents[2] / "src"
CLUSTER = "role-of-the-stack"
ROLE = "skytune-aws-us-east-1"

# What `src/run.py` does before it starts anything: connect, which tells SkyPilot of the active stack's role.
LAUNCH = """
from pathlib import Path
from skytune.stacks import environment
environment.prepare(Path({src!r}))
environment.connect()
import sky
task = sky.Task(name="job", run="! test -e ~/.aws/credentials")
task.set_resources(sky.Resources(infra="aws/us-east-1", instance_type="m5.large"))
job, _ = sky.stream_and_get(sky.launch(task, cluster_name={cluster!r}))
raise SystemExit(sky.tail_logs({cluster!r}, job, follow=True))
"""
DOWN = "import sky; sky.get(sky.down({cluster!r}))"


@dataclass
class User:
    """Somebody with this checkout inside the farm."""

    farm: Farm
    env: dict[str, str]

    def run(self, *words: str, cold: bool = False) -> Any:
        """Run Python; a `cold` one imports everything itself: SkyPilot reads its configuration when it is imported."""
        start = [sys.executable] if cold else python(self.farm)
        return self.farm.run([*start, *words], env=self.env, timeout=400)


@pytest.fixture(scope="module")
def user(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    place = tmp_path_factory.mktemp("user")
    (place / ".zen").mkdir()
    env = farm.environment(
        PYTHONPATH=str(SRC),
        SKYTUNE_HOME=str(place / "home"),
        ZENML_CONFIG_PATH=str(place / "zenml"),
        ZENML_REPOSITORY_PATH=str(place),
        COLUMNS="200",
        AWS_DEFAULT_REGION="us-east-1",
    )
    yield User(farm, env)


def test_machines_get_the_role_that_was_made_and_no_keys(user: User, farm: Farm) -> None:
    stack = str(SRC / "stack.py")
    made = user.run(stack, "register", "aws", "--compute", "m5.large")
    assert made.returncode == 0, made.stdout
    go = user.run(stack, "check", "aws", "--timeout", "100")
    assert go.returncode == 0, go.stdout
    assert "m5.large, on demand: $0.096 an hour" in go.stdout
    activate = "from zenml.client import Client; Client().activate_stack('aws')"
    assert user.run("-c", activate).returncode == 0
    with farm.declare(CLUSTER):
        try:
            launched = user.run("-c", LAUNCH.format(src=str(SRC), cluster=CLUSTER), cold=True)
            assert launched.returncode == 0, launched.stdout
            # By the job's end: SkyPilot at times drops the last lines that a job says.
            assert "status: SUCCEEDED" in launched.stdout
            (head,) = farm.instances(CLUSTER)
            with farm.inside():
                found = farm.client("ec2").describe_instances(InstanceIds=[head.id])
            profile = found["Reservations"][0]["Instances"][0]["IamInstanceProfile"]["Arn"]
            assert profile.endswith(f"instance-profile/{ROLE}")
            kept = user.run(stack, "destroy", "aws", "--yes", "--delete-data")
            assert kept.returncode == 1 and head.id in kept.stdout  # not while a machine runs with its role
        finally:
            user.run("-c", DOWN.format(cluster=CLUSTER))
    assert farm.instances(CLUSTER) == []
    gone = user.run(stack, "destroy", "aws", "--yes", "--delete-data")
    assert gone.returncode == 0, gone.stdout
    with farm.inside():
        assert ROLE not in {each["RoleName"] for each in farm.client("iam").list_roles()["Roles"]}
        assert not [b for b in farm.client("s3").list_buckets()["Buckets"] if b["Name"].startswith("skytune-aws")]
    assert not os.path.exists(Path(user.env["SKYTUNE_HOME"]) / "stacks" / "aws.sky.yaml")
