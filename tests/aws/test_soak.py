"""Is the stand-in itself to be trusted? Ten launches in a row, none of which may fail for a reason of its own."""

import time
from collections.abc import Callable

import pytest
from farm import Farm
from sdk import sky

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

LAUNCHES = 10
REGIONS = ("us-east-1", "us-west-2")


def test_ten_launches_in_a_row(farm: Farm, note_launch: Callable[[str], None]) -> None:
    """One node and two nodes, regions in turn: up, every node's output, down, nothing left."""
    failed: list[str] = []
    for number in range(LAUNCHES):
        nodes, cluster, began = 1 + number % 2, f"soak{number}", time.monotonic()
        where = {"infra": f"aws/{REGIONS[number // 2 % 2]}", "instance_type": "m5.large", "use_spot": number % 3 == 0}
        with farm.declare(cluster):
            result, output = sky(
                farm,
                "launch",
                1200,
                cluster=cluster,
                run="echo rank $SKYPILOT_NODE_RANK is $(hostname)",
                num_nodes=nodes,
                **where,
            )
            launched = time.monotonic() - began
            machines = farm.instances(cluster)
            wanted = [f"rank {rank} is ip-{m.private_ip.replace('.', '-')}" for rank, m in enumerate(machines)]
            missing = [line for line in wanted if line not in output]
            missing += [line for line, machine in zip(wanted, machines, strict=True) if line not in farm.log(machine)]
            left = sky(farm, "down", 1200, cluster=cluster)[0] if machines else []
        ok = result == {"job": 1, "code": 0} and len(machines) == nodes and not missing and left == []
        ok = ok and not farm.instances() and not farm.failures()
        seconds = f"{launched:.0f} s up and run, {time.monotonic() - began - launched:.0f} s down"
        line = f"launch {number + 1}: {nodes} node{'s' * (nodes > 1)}, {'ok' if ok else 'FAILED'}, {seconds}"
        print(line, flush=True)
        note_launch(line)
        if not ok:
            failed.append(
                f"{number + 1}: {result}, missing {missing}, left {left}, {farm.failures()}\n{output[-2000:]}"
            )
            for each in farm.instances():
                farm.terminate(each)
    assert not failed, f"{len(failed)} of {LAUNCHES} failed:\n" + "\n".join(failed)


def test_a_forgotten_cluster_takes_itself_down(farm: Farm) -> None:
    """SkyPilot's autodown runs on the head node, with the machine's own role: the user's credentials may be gone."""
    with farm.declare("forgotten"):
        where = {"infra": "aws/us-east-1", "instance_type": "m5.large"}
        result, _ = sky(farm, "launch", 1200, cluster="forgotten", run="true", num_nodes=2, autodown=1, **where)
        assert result == {"job": 1, "code": 0}
        with farm.expired_credentials():
            end = time.monotonic() + 600
            while farm.instances("forgotten") and time.monotonic() < end:
                time.sleep(1)
    assert farm.instances() == []
    assert sky(farm, "status", cluster="forgotten")[0] == []
