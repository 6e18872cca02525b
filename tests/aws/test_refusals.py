"""What is refused before a machine costs anything: by this project where it can be known, else as the cloud says it.

The first run is the whole command; after it, its job is handed to the launcher in a process of its own, which is all
that a refusal needs.
"""

import re
import sys
from collections.abc import Callable, Iterator

import pytest
from farm import Farm
from project import Project, RunSummary

pytestmark = pytest.mark.slow

# SkyPilot's real server, which says of itself that it is much older.
OLDER = """
import runpy, sky
from sky.server import constants
sky.__version__, constants.API_VERSION, constants.MIN_COMPATIBLE_API_VERSION = "0.8.1", 3, 1
runpy.run_module("sky.server.server", run_name="__main__")
"""

BESIDE_IT = """
ip link set lo up
HOME=$3 "$1" -c "$2" > "$3/log" 2>&1 &
until grep -q "Uvicorn running" "$3/log"; do sleep 0.1; kill -0 $!; done
"$1" -c "$4"
"""


@pytest.fixture(scope="module")
def refused(farm: Farm, new_project: Callable[..., Project], small: list[str]) -> Iterator[tuple[Project, RunSummary]]:
    """A spot machine anywhere on AWS, asked for with credentials that have expired."""
    project = new_project(infra="aws", instance_type="m5.large", use_spot=True)
    before = len(farm.calls(action="RunInstances"))
    with farm.expired_credentials():
        done = project.run(*small)
    assert len(farm.calls(action="RunInstances")) == before
    yield project, done


@pytest.fixture(autouse=True)
def _no_machine_was_there(farm: Farm) -> Iterator[None]:
    before = farm.instances(gone=True)
    yield
    assert not farm.since(before)


def only_error(done: RunSummary) -> str:
    """Return the one line that says why."""
    assert done.code == 1, done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("error:")]
    return line


def test_expired_credentials_are_noticed_before_anything_is_asked_for(refused: tuple[Project, RunSummary]) -> None:
    project, done = refused
    assert "credentials have expired" in only_error(done)
    assert project.last_run()["steps"]["train_model"]["status"] == "failed"


def test_without_spot_capacity_both_regions_are_named_and_the_full_price_is_not_paid_unasked(
    farm: Farm, refused: tuple[Project, RunSummary]
) -> None:
    before = len(farm.calls(action="RunInstances"))
    with farm.no_capacity(spot=True):
        message = only_error(refused[0].launch())
    assert "InsufficientInstanceCapacity" in message and "us-east-1" in message and "us-west-2" in message
    asked = farm.calls(action="RunInstances")[before:]
    zones = {call["zone"] for call in asked}
    assert zones == {"us-east-1a", "us-east-1b", "us-west-2a", "us-west-2b"} and len(asked) <= 10 * len(zones)
    assert {call["params"].get("InstanceMarketOptions.MarketType") for call in asked} == {"spot"}


def test_a_quota_that_is_too_small_is_named(farm: Farm, refused: tuple[Project, RunSummary]) -> None:
    with farm.quota("Standard", 1):
        message = only_error(refused[0].launch(use_spot=False, region="us-west-2"))
    assert "VcpuLimitExceeded" in message and "us-west-2" in message


def test_what_is_too_dear_is_not_asked_for(farm: Farm, refused: tuple[Project, RunSummary]) -> None:
    before = len(farm.calls(action="RunInstances"))
    message = only_error(refused[0].launch(use_spot=False, max_hourly_usd=0.05))
    assert "costs $0.10 an hour" in message and "compute.max_hourly_usd=0.05" in message
    assert len(farm.calls(action="RunInstances")) == before


def test_a_server_of_another_version_is_named_with_both(farm: Farm, refused: tuple[Project, RunSummary]) -> None:
    project, _ = refused
    home = project.place / "older"
    home.mkdir()
    # Where a server runs already: in a network of their own, and in their own space of process ids, whose first
    # process takes all others along.
    away = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-ec", BESIDE_IT]
    words = [*away, "-", sys.executable, OLDER, str(home), project.launching()]
    done = farm.run(words, env=project.env, cwd=project.place, timeout=300)
    print(done.stdout)
    message = only_error(RunSummary(done.returncode, done.stdout))
    assert re.search(r"client is 0\.11\.\d+, its API server 0\.8\.1", message)
    assert "`sky api stop && sky api start`" in message


def test_without_credentials_nothing_is_asked_of_aws(farm: Farm, refused: tuple[Project, RunSummary]) -> None:
    # SkyPilot's server keeps what credentials it has read: a new one has none. This test is the last: starting one more
    # takes long.
    farm.run(["sky", "api", "stop"], timeout=200)
    project = refused[0]
    before = len(farm.calls(service="ec2"))
    with farm.no_credentials():
        message = only_error(project.launch())
    farm.run(["sky", "api", "stop"], timeout=200, check=True)
    assert "SkyPilot may use no cloud" in message and "`aws configure`" in message
    assert len(farm.calls(service="ec2")) == before
