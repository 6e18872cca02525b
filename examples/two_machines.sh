#!/bin/sh
# One training on two machines, started by hand on each (srun, Kubernetes and ssh do it for you: docs/several-machines.md).
# Both need this checkout, `make install`, and a folder that both see, or a bucket.
#
#   sh examples/two_machines.sh 0 10.0.0.1 /mnt/all/skytune     on the machine with the address 10.0.0.1
#   sh examples/two_machines.sh 1 10.0.0.1 /mnt/all/skytune     on the other one
set -e
rank=$1 address=$2 share=$3
shift 3
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" src/run.py launch.nodes=2 launch.node_rank="$rank" launch.master_addr="$address" \
    launch.share="$share" launch.num_processes=2 "$@"
