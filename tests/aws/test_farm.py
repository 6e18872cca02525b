"""The real SkyPilot on the stand-in: SDK, API server, provisioner, teardown. The tests share two clusters.

For `make soak`: what this project does with them, in the other files, shows the same and more.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from farm import Farm, Instance
from sdk import sky

pytestmark = pytest.mark.soak

SPOT: dict[str, Any] = {"instance_type": "m5.large", "use_spot": True}

HELLO = """
echo "hello from rank $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES on $(hostname -I)"
echo "nodes: $(echo $SKYPILOT_NODE_IPS)"
for address in $SKYPILOT_NODE_IPS; do head -c 4 < /dev/tcp/$address/22; echo " from $address"; done
"""


@pytest.fixture(scope="module")
def single(farm: Farm) -> Iterator[str]:
    """The output of a job on a cluster of one, which was launched while the first zone was sold out."""
    with farm.declare("single"):
        with farm.no_capacity(zone="us-east-1a"):
            result, output = sky(farm, "launch", cluster="single", run=HELLO, infra="aws/us-east-1", **SPOT)
        assert result == {"job": 1, "code": 0}
        yield output
        if farm.instances("single"):
            assert sky(farm, "down", cluster="single")[0] == []


@pytest.fixture(scope="module")
def pair(farm: Farm) -> Iterator[list[Instance]]:
    """The two machines of a cluster on which a job ran."""
    with farm.declare("pair"):
        result, _ = sky(farm, "launch", cluster="pair", run=HELLO, num_nodes=2, infra="aws/us-west-2", **SPOT)
        assert result == {"job": 1, "code": 0}
        yield farm.instances("pair")
        if farm.instances("pair"):
            sky(farm, "down", cluster="pair")


def test_one_node_comes_up_and_its_output_arrives(farm: Farm, single: str) -> None:
    (machine,) = farm.instances("single")
    assert (machine.machine, machine.type, machine.spot, machine.head) == ("ready", "m5.large", True, True)
    message = f"hello from rank 0 of 1 on {machine.private_ip}"
    assert message in single
    assert message in farm.log(machine)


def test_a_zone_without_capacity_is_passed_over(farm: Farm, single: str) -> None:
    (machine,) = farm.instances("single")
    assert machine.zone == "us-east-1b"
    calls = farm.calls(action="RunInstances", region="us-east-1")
    # Others' launches may have come before.
    asked = [(call["zone"], call["error"]) for call in calls if machine.cluster in str(call["params"])]
    assert asked[0] == ("us-east-1a", "InsufficientInstanceCapacity") and asked[-1] == ("us-east-1b", "")
    assert "us-east-1a" in single and "us-east-1b" in single


def test_expired_credentials_end_a_launch(farm: Farm, single: str) -> None:
    with farm.expired_credentials():
        result, output = sky(
            farm, "launch", cluster="none", run="true", infra="aws/us-east-1", instance_type="m5.large"
        )
    assert "expired" in output + json.dumps(result) and "error" in result
    assert [each.cluster for each in farm.instances()] == ["single"]


def test_down_leaves_nothing(farm: Farm, single: str) -> None:
    (machine,) = farm.instances("single")
    left, _ = sky(farm, "down", cluster="single")
    assert left == [] and farm.instances() == []
    (gone,) = [each for each in farm.instances(gone=True) if each.id == machine.id]
    assert (gone.machine, gone.reason) == ("off", "Client.UserInitiatedShutdown")
    assert len([call for call in farm.calls(action="TerminateInstances") if machine.id in str(call["params"])]) == 1
    assert "hello from rank 0" in farm.log(machine)


def test_two_nodes_see_each_other(farm: Farm, pair: list[Instance]) -> None:
    assert [each.head for each in pair] == [True, False] and {each.region for each in pair} == {"us-west-2"}
    addresses = [each.private_ip for each in pair]
    for rank, machine in enumerate(pair):
        log = farm.log(machine)
        assert f"hello from rank {rank} of 2 on {machine.private_ip}" in log
        assert f"nodes: {' '.join(addresses)}" in log
        assert all(f"SSH- from {address}" in log for address in addresses)


def test_skypilot_notices_a_preemption_with_and_without_a_notice(farm: Farm, pair: list[Instance]) -> None:
    head, worker = pair
    farm.preempt(worker, notice_s=2)
    end = time.monotonic() + 600
    while len(farm.instances("pair")) == 2 and time.monotonic() < end:
        time.sleep(0.1)
    assert [each.id for each in farm.instances("pair")] == [head.id]
    assert sky(farm, "status", cluster="pair")[0] == ["INIT"]
    farm.preempt(head, notice_s=0)
    assert farm.instances("pair") == []
    assert sky(farm, "status", cluster="pair")[0] == []
    gone = [each for each in farm.instances(gone=True) if each.cluster == "pair"]
    assert {each.reason for each in gone} == {"Server.SpotInstanceTermination"}
