"""A real collective operation between processes, for `make doctor`: do they find each other, and do they add up?

python -m torch.distributed.run --standalone --nproc-per-node 2 -m skytune.doctor.allreduce gloo
"""

import os
import sys
from datetime import timedelta


def main(argv: list[str]) -> int:
    """Add every rank's number up with the backend `gloo` or `nccl`; return 0 if every rank got the sum."""
    import torch
    import torch.distributed as dist

    backend = argv[0]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    file = os.environ.get("SKYTUNE_RENDEZVOUS")  # see `launch.local.loopback`; by hand there is none
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    meeting = f"file://{file}" if file else "env://"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    try:
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
