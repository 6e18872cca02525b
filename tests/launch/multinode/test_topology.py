"""How many machines there are and which one this is, as a table of environments."""

import re
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ComputeConfig, ConfigError, Device, LaunchConfig, RunConfig, from_dict
from skytune.job import JobDir
from skytune.launch.gpus import check_machine, processes_each
from skytune.launch.local import agent
from skytune.launch.multinode.topology import PORT, Nodes, first_host, node_addresses, nodes_of

SKY = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n\n", "SKYPILOT_NUM_NODES": "2"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_JOB_NODELIST": "gpu[01-09]",
}
STEP = {  # srun -n4 -N1
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NNODES": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NODELIST": "a",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "3", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "gpu[07-09]"}
WORKER = {
    "GROUP_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "RANK": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}
PET = {"PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "23456"}
SCRIPTS = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "m"}
KUBERNETES = {"NNODES": "2", "MASTER_ADDR": "skytune-0.skytune", "JOB_COMPLETION_INDEX": "1"}
KUBEFLOW = {  # what its operator (1.7) sets in a worker
    "PYTHONUNBUFFERED": "1",
    "MASTER_PORT": "23456",
    "MASTER_ADDR": "skytune-master-0",
    "WORLD_SIZE": "2",
    "RANK": "1",
    "PET_MASTER_PORT": "23456",
    "PET_MASTER_ADDR": "skytune-master-0",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "1",
    "PET_NNODES": "2",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-10","algo-9"]', "SM_CURRENT_HOST": "algo-10"}

TABLE: dict[str, tuple[dict[str, Any], dict[str, str], Nodes]] = {
    "nothing": ({}, {}, Nodes()),
    "nodes": ({"nodes": 2}, {}, Nodes(2)),
    "all of it": (
        {"nodes": 2, "node_rank": 1, "master_addr": "10.0.0.9", "master_port": 4000},
        {},
        Nodes(2, 1, "10.0.0.9", 4000),
    ),
    "skypilot": ({}, SKY, Nodes(2, 1, "10.0.0.1", PORT, "SkyPilot")),
    "skypilot alone": (
        {},
        {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"},
        Nodes(1, 0, "10.0.0.1", PORT, "SkyPilot"),
    ),
    "skypilot without": ({}, {"SKYPILOT_NODE_IPS": "\n"}, Nodes()),
    "skypilot, another port": ({"master_port": 4000}, SKY, Nodes(2, 1, "10.0.0.1", 4000, "SkyPilot")),
    "skypilot, the same number": ({"nodes": 2}, SKY, Nodes(2, 1, "10.0.0.1", PORT, "SkyPilot")),
    "skypilot, one wanted": ({"nodes": 1}, SKY, Nodes()),
    "slurm": ({}, SLURM, Nodes(3, 2, "gpu07", PORT, "Slurm")),
    "slurm, older": (
        {},
        {"SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "a,b"},
        Nodes(2, 0, "a", PORT, "Slurm"),
    ),
    "slurm, batch script": ({}, BATCH, Nodes()),
    "slurm, one task, a port": (
        {"master_port": 4000},
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        Nodes(1, 0, "a", 4000, "Slurm"),
    ),
    "slurm, one task": ({}, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}, Nodes(1, 0, "a", PORT, "Slurm")),
    "slurm, a terminal": ({}, {**STEP, "SLURM_PTY_PORT": "4711"}, Nodes(1, 0, "a", PORT, "Slurm")),
    "torchrun's worker": ({}, WORKER, Nodes(2, 1, "a", PORT, "torchrun")),
    "torchrun's options": ({}, PET, Nodes(4, 3, "m", 23456, "torchrun")),
    "scripts": (
        {},
        {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "m", "MASTER_PORT": "9"},
        Nodes(2, 1, "m", 9, "torchrun"),
    ),
    "kubernetes": ({}, KUBERNETES, Nodes(2, 1, "skytune-0.skytune", PORT, "Kubernetes")),
    "kubernetes, jobs that are alone": ({}, {"JOB_COMPLETION_INDEX": "3"}, Nodes()),
    "kubeflow": ({}, KUBEFLOW, Nodes(2, 1, "skytune-master-0", 23456, "torchrun")),
    "a service's port": ({}, {"MASTER_PORT": "tcp://10.0.0.1:80"}, Nodes()),
    "an address alone": ({}, {"MASTER_ADDR": "m", "MASTER_PORT": "99"}, Nodes()),
    "sagemaker": ({}, SAGEMAKER, Nodes(3, 2, "algo-1", PORT, "SageMaker")),
    "the first cluster counts": ({}, {**SAGEMAKER, **PET, **SLURM, **SKY}, Nodes(2, 1, "10.0.0.1", PORT, "SkyPilot")),
    "hosts": ({"hosts": ["a", "me@b"]}, SKY, Nodes(3)),
    "hosts and an address": (
        {"hosts": ["a"], "master_addr": "10.0.0.9", "master_port": 7},
        {},
        Nodes(2, 0, "10.0.0.9", 7),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name: str) -> None:
    settings, environ, nodes = TABLE[name]
    assert nodes_of(LaunchConfig(**settings), environ) == nodes


WRONG: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "rank beyond": ({"nodes": 2, "node_rank": 2, "master_addr": "a"}, {}, "launch.node_rank=2: there are 2 machines"),
    "rank alone": ({"node_rank": 1, "master_addr": "a"}, {}, r"launch.node_rank=1: .*launch.nodes=N"),
    "rank of the only one": ({"nodes": 1, "node_rank": 3}, {}, "^launch.node_rank=3: launch.nodes=1 says"),
    "an address alone": ({"master_addr": "a"}, {}, "^launch.master_addr=a: there is one machine; launch.nodes=N"),
    "a port alone": ({"master_port": 4000}, {}, "^launch.master_port=4000: there is one machine; launch.nodes=N"),
    "no address": ({"nodes": 2, "node_rank": 1}, {}, "launch.node_rank=1 needs launch.master_addr"),
    "other number": ({"nodes": 3}, SKY, "launch.nodes=3: SkyPilot has started 2 machines"),
    "hosts and a number": ({"hosts": ["a"], "nodes": 3}, {}, "launch.hosts names all other machines, 1, and"),
    "hosts and a rank": ({"hosts": ["a"], "node_rank": 1}, {}, "launch.hosts names all other machines, 1, and"),
    "tasks": ({}, {**SLURM, "SLURM_STEP_NUM_TASKS": "12"}, "12 tasks on 3 machines.*--ntasks-per-node=1"),
    "tasks on one machine": ({}, STEP, "^Slurm runs 4 tasks on 1 machine: one each.*launch.num_processes=N"),
    "tasks behind a terminal": ({}, {**STEP, "SLURM_PTY_PORT": "4711", "SLURM_PROCID": "1"}, "^Slurm runs 4 tasks on"),
    "elastic": ({}, {"PET_NNODES": "1:4"}, "PET_NNODES=1:4: the number of machines must be fixed"),
    "no number": ({}, {**SKY, "SKYPILOT_NODE_RANK": "x"}, "SKYPILOT_NODE_RANK=x: must be a whole number"),
    "not all there": ({}, {**SKY, "SKYPILOT_NUM_NODES": "3"}, "SKYPILOT_NUM_NODES=3, but SKYPILOT_NODE_IPS names 2"),
    "no machine": ({}, {"NNODES": "0", "NODE_RANK": "0"}, "^NNODES=0: must be at least 1"),
    "no machine of torchrun": ({}, {"PET_NNODES": "0"}, "^PET_NNODES=0: must be at least 1"),
    "a long number": ({}, {"NNODES": "9" * 5000, "NODE_RANK": "0"}, "^NNODES=9{40}: must be a whole number"),
    "rank beyond, a variable": ({}, {**SKY, "SKYPILOT_NODE_RANK": "2"}, "^SKYPILOT_NODE_RANK=2: there are 2 machines"),
    "rank beyond, Slurm": ({}, {**SLURM, "SLURM_NODEID": "7"}, "^SLURM_NODEID=7: there are 3 machines"),
    "rank beyond, torchrun": ({}, {**PET, "PET_NODE_RANK": "4"}, "^PET_NODE_RANK=4: there are 4 machines"),
    "rank of one machine": ({}, {"NNODES": "1", "NODE_RANK": "1"}, "^NODE_RANK=1: there is one machine"),
    "rank below": ({}, {**SKY, "SKYPILOT_NODE_RANK": "-1"}, "^SKYPILOT_NODE_RANK=-1: must be a whole number"),
    "no rank": ({}, {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, "^SKYPILOT_NODE_RANK is not set"),
    "no rank, torchrun": ({}, {"PET_NNODES": "2", "PET_MASTER_ADDR": "m"}, "^PET_NODE_RANK is not set"),
    "no addresses": ({}, {**SKY, "SKYPILOT_NODE_IPS": "\n"}, "^SKYPILOT_NUM_NODES=2, but SKYPILOT_NODE_IPS names 0"),
    "no addresses, a rank": (
        {},
        {"SKYPILOT_NODE_IPS": "\n", "SKYPILOT_NODE_RANK": "1"},
        "^SKYPILOT_NODE_RANK=1: there is one machine",
    ),
    "no address, a variable": ({}, {"NNODES": "2", "NODE_RANK": "1"}, "^torchrun's node 1 needs launch.master_addr"),
    "port beyond": ({}, {**SCRIPTS, "MASTER_PORT": "70000"}, "^MASTER_PORT=70000: must lie between 1 and 65535"),
    "port 0": ({}, {**PET, "PET_MASTER_PORT": "0"}, "^PET_MASTER_PORT=0: must lie between 1 and 65535"),
    "port beyond, torchrun": ({}, {**PET, "PET_MASTER_PORT": "70000"}, "^PET_MASTER_PORT=70000: must lie between"),
    "a service's port": ({}, {**SCRIPTS, "MASTER_PORT": "tcp://10.0.0.1:80"}, "^MASTER_PORT=tcp://10.0.0.1:80: must"),
    "uneven machines": ({}, {**WORKER, "WORLD_SIZE": "7"}, "^WORLD_SIZE=7 is no multiple of LOCAL_WORLD_SIZE=4"),
    "rank beyond, Kubernetes": (
        {},
        {**KUBERNETES, "JOB_COMPLETION_INDEX": "2"},
        "^JOB_COMPLETION_INDEX=2: there",
    ),
    "no workers": ({}, {**WORKER, "LOCAL_WORLD_SIZE": "0"}, "^LOCAL_WORLD_SIZE=0: must be at least 1"),
    **{
        f"SM_HOSTS={hosts}": (
            {},
            {"SM_HOSTS": hosts, "SM_CURRENT_HOST": "algo-1"},
            f"^SM_HOSTS={re.escape(hosts)}: must be a list of na",
        )
        for hosts in ("algo-1,algo-2", "3", "[1,2]", "[]", "")
    },
    "a stranger": ({}, {"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}, "SM_CURRENT_HOST=b is not among"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_contradicts_itself_is_one_line(name: str) -> None:
    settings, environ, words = WRONG[name]
    with pytest.raises(ConfigError, match=words) as caught:
        nodes_of(LaunchConfig(**settings), environ)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"nodes": 0}, "launch.nodes=0"),
        ({"node_rank": -1}, "launch.node_rank=-1"),
        ({"master_port": 65536}, "launch.master_port=65536"),
        ({"hosts": ["a", "b", "a"]}, r"launch.hosts=\[a,b,a\]: a is named twice"),
        ({"hosts": [""]}, r"launch.hosts=\[''\]: a name is empty"),
        ({"gpu_ids": "0 1"}, "launch.gpu_ids=0 1"),
        ({"timeouts": {"start": 0.0}}, "launch.timeouts.start"),
        ({"timeouts": {"heartbeat": -1.0}}, "launch.timeouts.heartbeat"),
        ({"share": "hf://a/b"}, "launch.share=hf://a/b: a folder, file:///folder or s3://bucket/folder is meant"),
        ({"share": "s3://"}, "launch.share=s3://"),
    ],
)
def test_a_value_that_cannot_be(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        from_dict(LaunchConfig, settings)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", []),
        ("10.0.0.1", ["10.0.0.1"]),
        ("10.0.0.1\n10.0.0.2\n", ["10.0.0.1", "10.0.0.2"]),
        ("10.0.0.1\n10.0.0.2\n\n", ["10.0.0.1", "10.0.0.2"]),
        ("\n 10.0.0.1 \r\n\n10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_blank_lines_are_no_machines(text: str, addresses: list[str]) -> None:
    """Case 25."""
    assert node_addresses(text) == addresses


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("gpu[7,9-11]", "gpu7"),
        ("rack[1-2]-n.cluster,x", "rack1-n.cluster"),
        ("rack[1-2]n[03,5],x", "rack1n03"),
        ("", ""),
    ],
)
def test_slurms_short_form(text: str, name: str) -> None:
    assert first_host(text) == name


def test_two_machines_of_four_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case 25: the first line is the master, and eight processes train."""
    monkeypatch.setattr("skytune.launch.gpus.count_gpus", lambda: 4)
    nodes, launch = nodes_of(LaunchConfig(), SKY), LaunchConfig()
    each = processes_each(ComputeConfig(), launch, nodes.count)
    assert each * nodes.count == 8
    assert nodes.address is not None
    words = " ".join(agent(JobDir(tmp_path), nodes, each, nodes.address, PORT))
    assert (
        "--nproc-per-node 4 --log-dir /dev/null --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29511"
        in words
    )


def test_processes_that_cannot_be_shared_out_are_refused_before_data_are_read() -> None:
    config = RunConfig(launch=LaunchConfig(nodes=2, num_processes=3), compute=ComputeConfig(device=Device.cpu))
    with pytest.raises(ConfigError, match=r"^launch.num_processes=3: cannot be shared out evenly among 2 machines"):
        check_machine(config)
