"""A machine as a test sees it."""

import re
from dataclasses import dataclass, field

CLUSTER = "skypilot-cluster-name"
_USER_HASH = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True)
class Instance:
    """One EC2 instance and its machine, as they were when they were asked for."""

    id: str
    state: str
    """EC2's word: running, stopped, terminated"""
    type: str
    region: str
    zone: str
    spot: bool
    private_ip: str
    public_ip: str | None
    launch_time: str
    """ISO 8601, UTC"""
    machine: str
    """booting, ready, off, failed (did not boot), halted (ended by itself), none (not seen by the hypervisor yet)"""
    lost: bool
    notice: dict[str, str] | None
    """the spot interruption notice that its metadata shows"""
    reason: str
    """EC2's code of why it ended: Client.UserInitiatedShutdown, Server.SpotInstanceTermination, …"""
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether it costs money."""
        return self.state in ("pending", "running")

    @property
    def cluster(self) -> str:
        """The SkyPilot cluster's name as its user gave it; "" for a machine that SkyPilot did not start."""
        return _USER_HASH.sub("", self.tags.get(CLUSTER, ""))

    @property
    def head(self) -> bool:
        """Whether it is its cluster's rank 0."""
        return self.tags.get("ray-node-type") == "head"


def id_of(instance: Instance | str) -> str:
    """Return an instance's id, given either."""
    return instance if isinstance(instance, str) else instance.id
