"""How many machines train together, and which of them this one is: from the configuration or a cluster's variables."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...config import ConfigError, LaunchConfig

PORT = 29511
"""Where torch's store listens on node 0 unless something else is said; not 29500, which every torchrun takes."""

ALONE = "there is one machine; launch.nodes=N says how many there are"


@dataclass(frozen=True)
class Nodes:
    """The machines of one run, seen from one of them."""

    count: int = 1
    rank: int = 0
    address: str | None = None
    """Node 0's, where it is known."""

    port: int | None = None
    """Node 0's, where it is known."""

    source: str = ""
    """Whose variables said so; empty where the configuration did."""


def nodes_of(launch: LaunchConfig, environ: Mapping[str, str]) -> Nodes:
    """Return what the configuration says of the machines, completed by the first cluster whose variables are there.

    The order is SkyPilot, Slurm, torchrun (`PET_*`, those of its workers, `NNODES` with `NODE_RANK` or the index of a
    Kubernetes Job), SageMaker. `launch.hosts` and `launch.nodes=1` leave no question open, so no variable is looked at.

    Raises:
        ConfigError: they contradict each other, or make no sense; the message names the key or the variable.
    """
    if launch.hosts:
        if launch.nodes not in (None, len(launch.hosts) + 1) or launch.node_rank:
            raise ConfigError(
                f"launch.hosts names all other machines, {len(launch.hosts)}, and makes this one node 0: leave "
                "launch.nodes and launch.node_rank out"
            )
        return Nodes(len(launch.hosts) + 1, 0, launch.master_addr, launch.master_port)
    if launch.nodes == 1:
        if launch.node_rank:
            raise ConfigError(f"launch.node_rank={launch.node_rank}: launch.nodes=1 says that there is one machine")
        return Nodes()
    found = next((nodes for read in CLUSTERS if (nodes := read(environ)) is not None), Nodes())
    if launch.nodes is not None and launch.nodes != found.count:
        if found.count > 1:
            raise ConfigError(f"launch.nodes={launch.nodes}: {found.source} has started {found.count} machines")
        found = Nodes()
    nodes = replace(
        found,
        count=found.count if launch.nodes is None else launch.nodes,
        rank=found.rank if launch.node_rank is None else launch.node_rank,
        address=launch.master_addr or found.address,
        port=launch.master_port or found.port,
    )
    if nodes.rank >= nodes.count:
        there = f"there are {nodes.count} machines, the last is {nodes.count - 1}" if nodes.count > 1 else ALONE
        raise ConfigError(f"launch.node_rank={nodes.rank}: {there}")
    if nodes.count == 1 and not nodes.source:
        for key in ("master_addr", "master_port"):
            if (value := getattr(launch, key)) is not None:
                raise ConfigError(f"launch.{key}={value}: {ALONE}")
    if nodes.rank and not nodes.address:
        which = f"launch.node_rank={nodes.rank}" if launch.node_rank else f"{nodes.source}'s node {nodes.rank}"
        raise ConfigError(f"{which} needs launch.master_addr: where node 0 can be reached")
    return nodes


def node_addresses(text: str) -> list[str]:
    """Return the addresses of `SKYPILOT_NODE_IPS`: one a line in the order of the ranks, at times with blank lines."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def first_host(nodelist: str) -> str:
    """Return the first name of Slurm's short form: `gpu[03-05,9],cpu1` is `gpu03`."""
    found = re.match(r"(?:[^\[,]|\[[^\]]*\])*", nodelist.strip())
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", found[0]) if found else ""


def _skypilot(environ: Mapping[str, str]) -> Nodes | None:
    addresses = node_addresses(environ.get("SKYPILOT_NODE_IPS", ""))
    count = _count(environ, "SKYPILOT_NUM_NODES") if "SKYPILOT_NUM_NODES" in environ else None
    if count is not None and count != len(addresses) and (addresses or count > 1):
        raise ConfigError(
            f"SKYPILOT_NUM_NODES={count}, but SKYPILOT_NODE_IPS names {len(addresses)} machines (launch.nodes=1 trains "
            "on this one alone)"
        )
    own = _rank(environ, "SKYPILOT_NODE_RANK", max(1, len(addresses)))
    return Nodes(len(addresses), own, addresses[0], PORT, "SkyPilot") if addresses else None


def _slurm(environ: Mapping[str, str]) -> Nodes | None:
    # Only inside a step: the batch script itself runs on the first machine alone, whatever the job was given.
    if "SLURM_STEP_ID" not in environ or "SLURM_NODEID" not in environ:
        return None
    machines = _count(environ, "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES")
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
    # In a terminal (srun --pty) Slurm runs a shell as task 0 and takes all output from the others: they end.
    shell = machines == 1 and "SLURM_PTY_PORT" in environ and environ.get("SLURM_PROCID", "0") == "0"
    if tasks is not None and tasks != str(machines) and not shell:
        raise ConfigError(
            f"Slurm runs {tasks} tasks on {machines} machine{'s' if machines > 1 else ''}: one each is right (srun "
            "--ntasks-per-node=1); launch.num_processes=N says how many processes train"
        )
    nodelist = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    return Nodes(machines, _rank(environ, "SLURM_NODEID", machines), first_host(nodelist) or None, PORT, "Slurm")


def _torchrun(environ: Mapping[str, str]) -> Nodes | None:
    """What torchrun takes as its options, or gives to its workers; and the names that most scripts use for the same."""
    address = environ.get("MASTER_ADDR")
    if "PET_NNODES" in environ:
        if ":" in environ["PET_NNODES"]:
            raise ConfigError(f"PET_NNODES={environ['PET_NNODES']}: the number of machines must be fixed")
        machines = _count(environ, "PET_NNODES")
        return Nodes(
            machines,
            _rank(environ, "PET_NODE_RANK", machines),
            environ.get("PET_MASTER_ADDR", address),
            _port(environ, "PET_MASTER_PORT", "MASTER_PORT"),
            "torchrun",
        )
    if {"GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} <= environ.keys():
        world, each = _count(environ, "WORLD_SIZE"), _count(environ, "LOCAL_WORLD_SIZE")
        if world % each:
            raise ConfigError(f"WORLD_SIZE={world} is no multiple of LOCAL_WORLD_SIZE={each}: machines must be alike")
        # On its own port torchrun's store listens.
        return Nodes(world // each, _rank(environ, "GROUP_RANK", world // each), address, PORT, "torchrun")
    for name, source in (("NODE_RANK", "torchrun"), ("JOB_COMPLETION_INDEX", "Kubernetes")):
        if {"NNODES", name} <= environ.keys():  # an index alone is that of a job of which many run, each by itself
            machines = _count(environ, "NNODES")
            return Nodes(machines, _rank(environ, name, machines), address, _port(environ, "MASTER_PORT"), source)
    return None


def _count(environ: Mapping[str, str], name: str) -> int:
    if (found := _number(environ, name)) < 1:
        raise ConfigError(f"{name}={found}: must be at least 1")
    return found


def _rank(environ: Mapping[str, str], name: str, machines: int) -> int:
    """Return which of so many machines this is, from 0; where there is one, the variable may be missing."""
    if name not in environ and machines == 1:
        return 0
    if (found := _number(environ, name)) >= machines:
        there = f"there are {machines} machines, the last is {machines - 1}" if machines > 1 else "there is one machine"
        raise ConfigError(f"{name}={found}: {there} (launch.nodes=1 trains on this one alone)")
    return found


def _port(environ: Mapping[str, str], *names: str) -> int:
    name = next((name for name in names if name in environ), None)
    found = PORT if name is None else _number(environ, name)
    if not 0 < found <= 65535:
        raise ConfigError(f"{name}={found}: must lie between 1 and 65535")
    return found


def _number(environ: Mapping[str, str], name: str) -> int:
    if name not in environ:
        raise ConfigError(f"{name} is not set, other variables of several machines are (launch.nodes=1 ignores them)")
    text = environ[name].strip()
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigError(f"{name}={' '.join(text.split())[:40]}: must be a whole number")
    return int(text)


def _sagemaker(environ: Mapping[str, str]) -> Nodes | None:
    if "SM_HOSTS" not in environ or "SM_CURRENT_HOST" not in environ:
        return None
    try:
        listed = json.loads(environ["SM_HOSTS"])
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not listed or not all(isinstance(host, str) for host in listed):
        text = " ".join(environ["SM_HOSTS"].split())
        raise ConfigError(f'SM_HOSTS={text}: must be a list of names in JSON, as in ["algo-1", "algo-2"]')
    hosts, own = sorted(listed, key=_natural), environ["SM_CURRENT_HOST"]
    if own not in hosts:
        raise ConfigError(f"SM_CURRENT_HOST={own} is not among SM_HOSTS={environ['SM_HOSTS']}")
    return Nodes(len(hosts), hosts.index(own), hosts[0], PORT, "SageMaker")


CLUSTERS: tuple[Callable[[Mapping[str, str]], Nodes | None], ...] = (_skypilot, _slurm, _torchrun, _sagemaker)


def _natural(host: str) -> list[tuple[int, str]]:
    """`algo-10` comes after `algo-9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", host)]
