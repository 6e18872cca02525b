"""The stand-in's machines, asked for with boto3 as SkyPilot would: no SkyPilot here, so it takes seconds."""

import base64
import contextlib
import json
import socket
from collections.abc import Callable, Iterator

import pytest
from farm import Farm, FarmError, Instance
from farm.cli import status

USER_DATA = """#cloud-config
users:
  - name: ubuntu
    sudo: ALL=(ALL) NOPASSWD:ALL
    ssh_authorized_keys: [ssh-ed25519 AAAA test]
write_files:
  - path: /etc/written/by-user-data
    content: hello
runcmd:
  - echo $(hostname) > /ran
"""

Run = Callable[..., list[Instance]]


@pytest.fixture
def run(farm: Farm) -> Iterator[Run]:
    """Return a function that starts machines, waits until they are up, and returns them; they end with the test."""
    started: list[str] = []

    def start(count: int = 1, type_: str = "m5.large", zone: str = "us-east-1a", spot: bool = False) -> list[Instance]:
        region = zone[:-1]
        with farm.inside():
            ec2 = farm.client("ec2", region)
            subnets = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [zone]}])["Subnets"]
            network = {"DeviceIndex": 0, "SubnetId": subnets[0]["SubnetId"], "AssociatePublicIpAddress": True}
            made = ec2.run_instances(
                ImageId="ami-1",
                InstanceType=type_,
                MinCount=count,
                MaxCount=count,
                NetworkInterfaces=[network],
                UserData=USER_DATA,
                **({"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}),
            )["Instances"]
        ids = [each["InstanceId"] for each in made]
        started.extend(ids)
        farm.wait(lambda: all(each.machine != "booting" and each.machine != "none" for each in found(farm, ids)))
        return found(farm, ids)

    yield start
    for id_ in started:
        farm.terminate(id_)


def found(farm: Farm, ids: list[str]) -> list[Instance]:
    """Return the machines with these ids, gone ones too, in this order."""
    by_id = {each.id: each for each in farm.instances(gone=True)}
    return [by_id[id_] for id_ in ids]


def answers(farm: Farm, address: str | None) -> bool:
    """Whether an sshd answers there, tried from inside the farm."""
    assert address is not None
    with farm.inside():
        try:
            with socket.create_connection((address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


def test_machines_boot_from_user_data_and_reach_each_other(farm: Farm, run: Run) -> None:
    one, two = run(2)
    assert {one.machine, two.machine} == {"ready"}
    assert answers(farm, one.public_ip) and answers(farm, two.public_ip)
    name = f"ip-{one.private_ip.replace('.', '-')}"
    assert farm.execute(one, ["hostname"]).strip() == name
    assert farm.read(one, "/etc/written/by-user-data") == "hello"
    assert farm.read(one, "/ran").strip() == name
    assert "ssh-ed25519 AAAA test" in farm.read(one, ".ssh/authorized_keys")
    assert farm.execute(one, ["sudo", "id", "-u"]).strip() == "0"
    assert farm.execute(one, ["bash", "-c", f"head -c 4 < /dev/tcp/{two.private_ip}/22"]) == "SSH-"
    # Its own processes and files, and nothing of whoever runs the tests.
    assert "farm.cloud" not in farm.execute(one, ["ps", "ax"])
    assert farm.execute(one, ["ls", "/home"]).split() == ["ubuntu"]


def test_regions_do_not_share_addresses(farm: Farm, run: Run) -> None:
    east, west = run(1, zone="us-east-1b"), run(1, zone="us-west-2a")
    assert east[0].zone == "us-east-1b" and west[0].region == "us-west-2"
    assert len({each.private_ip for each in [*east, *west]}) == len({each.public_ip for each in [*east, *west]}) == 2


def test_packages_install_without_a_network(farm: Farm, run: Run) -> None:
    (machine,) = run()
    script = """
        uv venv -q --python 3.11 ~/env && . ~/env/bin/activate
        printf 'torch==2.13.0\\n' > /tmp/constraints.txt
        uv pip install -q -c /tmp/constraints.txt torch transformers accelerate safetensors numpy pyarrow
        python -c 'import torch, accelerate; print(torch.tensor([1.0, 2.0]).sum().item(), accelerate.__version__)'
        command -v torchrun accelerate
    """
    lines = farm.execute(machine, ["bash", "-ec", script]).splitlines()
    assert lines[0].startswith("3.0 1.15")
    assert lines[1:] == ["/home/ubuntu/env/bin/torchrun", "/home/ubuntu/env/bin/accelerate"]
    missing = "uv venv -q /tmp/other && VIRTUAL_ENV=/tmp/other uv pip install -q no-such-package"
    with pytest.raises(FarmError, match="no-such-package"):
        farm.execute(machine, ["bash", "-ec", missing])


def metadata(farm: Farm, machine: Instance, path: str) -> str:
    """Return what a machine reads from its metadata, with a token; "404" where there is nothing."""
    base = "http://169.254.169.254/latest"
    token = f"TOKEN=$(curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {base}/api/token)"
    ask = f'curl -sf -H "X-aws-ec2-metadata-token: $TOKEN" {base}/{path} || echo 404'
    return farm.execute(machine, ["bash", "-c", f"{token}; {ask}"]).strip()


def test_metadata_needs_a_token_and_knows_who_asks(farm: Farm, run: Run) -> None:
    one, two = run(2)
    assert metadata(farm, one, "meta-data/instance-id") == one.id
    assert metadata(farm, two, "meta-data/instance-id") == two.id
    bare = [
        "curl",
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "http://169.254.169.254/latest/meta-data/instance-id",
    ]
    assert farm.execute(one, bare) == "401"
    # With the role from there a machine may call AWS, as autostop on a machine does.
    script = "export AWS_DEFAULT_REGION=us-east-1 AWS_ENDPOINT_URL=http://172.31.0.1:5000; "
    script += "~/skypilot-runtime/bin/aws ec2 describe-instances --query 'Reservations[].Instances[].InstanceId'"
    assert one.id in farm.execute(one, ["bash", "-c", script])


def test_a_preemption_is_announced_and_then_happens(farm: Farm, run: Run) -> None:
    (machine,) = run(spot=True)
    assert metadata(farm, machine, "meta-data/spot/instance-action") == "404"
    farm.preempt(machine, notice_s=4)
    notice = json.loads(metadata(farm, machine, "meta-data/spot/instance-action"))
    assert notice["action"] == "terminate" and notice["time"].endswith("Z")
    assert farm.instances() != []
    (gone,) = farm.wait(lambda: [each for each in found(farm, [machine.id]) if each.state == "terminated"])
    assert (gone.machine, gone.reason) == ("off", "Server.SpotInstanceTermination")
    assert not answers(farm, machine.public_ip)
    # What it wrote is still there to be read.
    assert farm.read(machine, "/ran").startswith("ip-")
    assert "ready" in farm.log(machine)


def test_a_preemption_without_a_notice(farm: Farm, run: Run) -> None:
    spot, bought = run(spot=True) + run()
    farm.preempt(spot, notice_s=0)
    assert [each.state for each in found(farm, [spot.id, bought.id])] == ["terminated", "running"]
    with pytest.raises(FarmError, match="on-demand"):
        farm.preempt(bought)
    with pytest.raises(FarmError, match=f"no machine {spot.id} runs"):
        farm.preempt(spot)


def test_a_lost_machine_is_silent_but_running(farm: Farm, run: Run) -> None:
    (machine,) = run()
    farm.lose(machine)
    assert not answers(farm, machine.public_ip)
    (lost,) = found(farm, [machine.id])
    assert lost.lost and lost.state == "running" and farm.execute(machine, ["echo", "alive"]) == "alive\n"
    farm.find(machine)
    farm.wait(lambda: answers(farm, machine.public_ip))


def test_a_boot_that_fails_ends_and_is_not_tried_again(farm: Farm, run: Run) -> None:
    with farm.broken_boot("crash", zone="us-east-1a"):
        (machine,) = run()
    assert (machine.state, machine.machine, machine.reason) == ("terminated", "failed", "Server.InternalError")
    assert "boot failed" in farm.log(machine)
    boots = [each for each in farm.events() if each["instance"] == machine.id and each["event"] == "boot"]
    assert len(boots) == 1
    with farm.broken_boot("silent"):
        (machine,) = run()
    assert machine.state == "running" and not answers(farm, machine.public_ip)


def test_a_machine_that_halts_itself_is_terminated(farm: Farm, run: Run) -> None:
    (machine,) = run()
    with contextlib.suppress(FarmError):  # it may be gone before the command is
        farm.execute(machine, ["sh", "-c", "kill $(cat /run/sshd.pid)"], user="root")
    (gone,) = farm.wait(lambda: [each for each in found(farm, [machine.id]) if not each.running])
    assert (gone.machine, gone.reason) == ("halted", "Client.InstanceInitiatedShutdown")


def test_a_stopped_machine_keeps_its_disk(farm: Farm, run: Run) -> None:
    (machine,) = run()
    farm.execute(machine, ["sh", "-c", "echo kept > ~/note; echo kept > /usr/local/note"], user="root")
    with farm.inside():
        farm.client("ec2").stop_instances(InstanceIds=[machine.id])
    farm.wait(lambda: not answers(farm, machine.public_ip))
    assert [each.state for each in farm.instances()] == ["stopped"]
    with farm.inside():
        farm.client("ec2").start_instances(InstanceIds=[machine.id])
    (again,) = farm.wait(lambda: [each for each in found(farm, [machine.id]) if each.machine == "ready"])
    assert farm.execute(again, ["cat", "/usr/local/note"]) == "kept\n"
    assert answers(farm, again.public_ip)


def test_the_network_has_no_way_out(farm: Farm, run: Run) -> None:
    (machine,) = run()
    ask = "import socket\ntry: socket.create_connection(('93.184.216.34', 80), 5)\nexcept OSError as e: print(e.errno)"
    assert farm.execute(machine, ["python3.11", "-c", ask]).strip() == "101"  # network is unreachable: at once


def test_user_data_is_sent_as_ec2_sends_it(farm: Farm, run: Run) -> None:
    (machine,) = run()
    with farm.inside():
        answer = farm.client("ec2").describe_instance_attribute(InstanceId=machine.id, Attribute="userData")
    assert base64.b64decode(answer["UserData"]["Value"]).decode() == USER_DATA


def test_the_price_of_what_runs_is_shown(farm: Farm, run: Run) -> None:
    (machine,) = run(type_="g5.xlarge", zone="us-west-2b", spot=True)
    line = next(line for line in status(farm).splitlines() if machine.id in line)
    assert line.split()[1:6] == ["-", "g5.xlarge", "us-west-2b", "spot", "running"] and line.endswith("0.460")
    assert "1 running, $0.460 an hour" in status(farm)
