"""On every machine that SkyPilot brings up: which of them it is.

    python bootstrap.py skytune.launch.skypilot.node JOBDIR

It reads SkyPilot's variables (SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS) and the launcher's (`worker_environment`).
"""

import math
import os
import sys

from ...job import JobDir
from ..multinode.topology import Nodes, node_addresses
from ..remote.node import PORT, take_part


def main(argv: list[str] | None = None) -> int:
    """Run this machine's part of the job; return the exit code."""
    (folder,) = sys.argv[1:] if argv is None else argv
    rank = int(os.environ.get("SKYPILOT_NODE_RANK", "0"))
    addresses = node_addresses(os.environ.get("SKYPILOT_NODE_IPS", "")) or ["127.0.0.1"]
    nodes = Nodes(len(addresses), rank, addresses[0], PORT, "SkyPilot")
    return take_part(JobDir(folder), nodes, float(os.environ.get("SKYTUNE_MAX_SECONDS") or math.inf))


if __name__ == "__main__":
    sys.exit(main())
