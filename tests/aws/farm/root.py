"""A machine's file system: an empty tree of its own, with the host's programs shown in it.

Of the host a machine sees /usr and the two Pythons (this environment's and that of SkyPilot's runtime), and nothing
that belongs to whoever runs the tests. Mounts are made in the calling process's mount namespace.
"""

import os
import sys
from pathlib import Path

from . import links, linux
from .programs import runtime_python

_MERGED = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"]
_FOLDERS = [
    *["dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr"],
    *["var/cache", "var/lib", "var/log", "var/spool", "var/tmp"],
]
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def skeleton(top: Path) -> None:
    """Make the folders that a machine has, and the points at which the host's parts are mounted."""
    for name in _FOLDERS:
        (top / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (top / name).chmod(0o1777)
    for name in _MERGED:
        if Path("/", name).is_symlink():
            (top / name).symlink_to(os.readlink(f"/{name}"))
        elif Path("/", name).is_dir():
            (top / name).mkdir()
    (top / "var" / "run").symlink_to("/run")
    for folder in pythons():
        _under(top, folder).mkdir(parents=True, exist_ok=True)
    _under(top, links.SITE).mkdir(parents=True, exist_ok=True)
    # A person's home may be closed to others; in a machine the path to a Python that lies there is open.
    for folder in pythons():
        for parent in [*folder.parents][:-1]:
            _under(top, parent).chmod(0o755)


def pythons() -> list[Path]:
    """Return the installation folders of the Pythons that machines use and that do not lie under /usr."""
    prefixes = {Path(sys.base_prefix).resolve(), Path(runtime_python()).parents[1]}
    return sorted(prefix for prefix in prefixes if prefix != Path("/usr") and Path("/usr") not in prefix.parents)


def mount_disk(top: Path, layers: list[Path], disk: Path) -> None:
    """Mount at `top` a machine's disk: the layers, with what the machine writes kept in the folder `disk`."""
    _overlay(top, layers, disk / "root")


def mount_host_parts(top: Path, layers: list[Path] | None = None, disk: Path | None = None) -> None:
    """Show the host's programs in the tree at `top`: /usr (with the layers' on top), Pythons, packages.

    /usr is for reading only unless `disk` says where what is written there is kept.
    """
    own = [layer / "usr" for layer in layers or [top] if (layer / "usr").is_dir()]
    _overlay(top / "usr", [*own, Path("/usr")], disk and disk / "usr")
    for name in _MERGED:
        if Path("/", name).is_dir() and not Path("/", name).is_symlink():
            linux.bind(f"/{name}", top / name)
    for folder in pythons():
        linux.bind(folder, _under(top, folder))
    linux.bind(links.site_packages(), _under(top, links.SITE))


def mount_kernel_parts(top: Path) -> None:
    """Give the tree at `top` its own /proc, /sys, /run and /dev (terminals, shared memory, no devices of the host)."""
    linux.mount("proc", top / "proc", "proc")
    linux.mount("sysfs", top / "sys", "sysfs", linux.MS_RDONLY)
    linux.mount("tmpfs", top / "run", "tmpfs", options="mode=755")
    for name in ("sshd", "lock", "user"):
        (top / "run" / name).mkdir()
    dev = top / "dev"
    linux.mount("tmpfs", dev, "tmpfs", options="mode=755")
    for name in ("pts", "shm"):
        (dev / name).mkdir()
    linux.mount("devpts", dev / "pts", "devpts", options="newinstance,ptmxmode=0666,mode=620,gid=5")
    linux.mount("tmpfs", dev / "shm", "tmpfs", options="mode=1777")
    for name, (major, minor) in _DEVICES.items():
        os.mknod(dev / name, 0o020666, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    for name, target in {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}.items():
        (dev / name).symlink_to(target)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{number}")


def _under(top: Path, path: Path) -> Path:
    return top / path.relative_to("/")


def _overlay(target: Path, lower: list[Path], upper: Path | None) -> None:
    options = f"lowerdir={':'.join(str(path) for path in lower)}"
    if upper is not None:
        (upper / "changed").mkdir(parents=True, exist_ok=True)
        work = upper / "work"
        # A machine that was stopped and starts again: the kernel refuses a `volatile` work folder that was used.
        linux.command("rm", "-rf", work)
        work.mkdir()
        # volatile: nothing here has to survive a power cut, so nothing waits for the disk.
        options += f",upperdir={upper / 'changed'},workdir={work},volatile"
    linux.mount("overlay", target, "overlay", options=options)


__all__ = ["mount_disk", "mount_host_parts", "mount_kernel_parts", "pythons", "skeleton"]
