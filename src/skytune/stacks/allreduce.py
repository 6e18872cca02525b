"""A real collective operation between processes, for `make doctor`: do they find each other, and do they add up?

python -m torch.distributed.run --standalone --nproc-per-node 2 -m skytune.stacks.allreduce gloo
"""

import os
import sys
from datetime import timedelta


def main(argv: list[str]) -> int:
    """Add every rank's number up with the backend `gloo` or `nccl`; return 0 if every rank got the sum."""
    import torch
    import torch.distributed as dist

    backend = argv[0]
    rank = int(os.environ["RANK"])
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=20))
    try:
        size = dist.get_world_size()
        # More than one value, and more than fits one small packet: what is sent for real in training.
        values = torch.full((65536,), float(rank + 1), device=device)
        dist.all_reduce(values)
        wanted = size * (size + 1) / 2
        if not bool((values == wanted).all()):
            print(f"rank {rank}: got {values.unique().tolist()} instead of {wanted}", file=sys.stderr)
            return 1
    finally:
        dist.destroy_process_group()
    if rank == 0:
        print(f"sum of {size} ranks is right")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
