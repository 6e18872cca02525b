"""The process from which machines' warm Python programs come (warm.py): in a machine's tree, but on no machine.

Started by the hypervisor as `python -m farm.prototype FOLDER LAYERS...`, once a farm; it reads the ids of machines'
first processes.
"""

import os
import sys
from pathlib import Path

from . import linux, root
from .bake import HOME, PROTOTYPE

MODULES = [
    *["sky", "sky.backends.backend_utils", "sky.skylet.autostop_lib", "sky.skylet.job_lib", "sky.skylet.log_lib"],
    *["sky.utils.message_utils", "ray", "ray.scripts.scripts"],
]


def main(folder: Path, layers: list[Path]) -> None:
    """Become it."""
    linux.die_with_parent()
    linux.unshare(linux.NEWNS)
    linux.private_mounts()
    top, disk = folder / "mnt", folder / "disk"
    top.mkdir(parents=True)
    root.mount_disk(top, layers, disk)
    root.mount_host_parts(top, layers, disk)
    root.mount_kernel_parts(top)
    os.chroot(top)
    os.chdir("/")
    words = [*PROTOTYPE, *MODULES]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": HOME}
    os.execve(words[0], words, env)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(layer) for layer in sys.argv[2:]])
