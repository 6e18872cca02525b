"""What the stand-in needs of its host, and whether it is there."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = {
    **dict.fromkeys(["/usr/sbin/sshd", "ssh", "ssh-keygen"], "openssh-server openssh-client"),
    **{"rsync": "rsync", "sudo": "sudo", "nc": "netcat-openbsd", "socat": "socat", "curl": "curl", "ip": "iproute2"},
}
"""Program -> the Debian packages that bring it. SkyPilot calls all of them but ip, here or on its machines."""

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_CHROOT": 18, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}


class Unavailable(Exception):
    """The stand-in cannot start on this machine; the message says why, and what would help."""


def require() -> None:
    """Raise Unavailable unless this machine can run the stand-in."""
    if sys.platform != "linux":
        raise Unavailable(f"the stand-in for EC2 is made of Linux namespaces, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise Unavailable("the stand-in for EC2 makes namespaces and mounts: run it as root")
    status = Path("/proc/self/status").read_text()
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    if missing := [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]:
        raise Unavailable(f"root without {', '.join(missing)} (in a container?) cannot make the stand-in's machines")
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        packages = sorted({word for program in missing for word in PROGRAMS[program].split()})
        raise Unavailable(f"not found: {', '.join(missing)}; apt-get install {' '.join(packages)}")
    if missing := [name for name in ("moto", "sky", "boto3", "cryptography") if not importlib.util.find_spec(name)]:
        raise Unavailable(f"not installed in this environment: {', '.join(missing)}; make install-dev")
    runtime_python()
    _try_namespaces()


@functools.cache
def runtime_python() -> str:
    """Return a Python for SkyPilot's runtime on its machines, whose Ray (2.9.3) exists up to Python 3.11.

    The distribution's comes first: it is built with optimizations, which one compiled by pyenv often is not.
    """
    if Path("/usr/bin/python3.11").exists():
        return "/usr/bin/python3.11"
    if sys.version_info[:2] == (3, 11):
        return str(Path(sys.executable).resolve())
    if found := shutil.which("python3.11"):
        return str(Path(found).resolve())
    raise Unavailable("SkyPilot's runtime (Ray 2.9.3) needs a python3.11 on the PATH")


def _try_namespaces() -> None:
    """A child tries what a sandbox may forbid even to root."""
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{_TRIAL}"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"this machine does not allow namespaces and mounts: {done.stderr.strip().splitlines()[-1]}")


_TRIAL = """
from farm import linux
linux.unshare(linux.EVERY_NAMESPACE & ~linux.NEWPID)
linux.private_mounts()
linux.mount('none', '/mnt', 'tmpfs')
linux.command('ip', 'link', 'add', 'trial0', 'type', 'bridge')
linux.command('ip', 'link', 'add', 'trial1', 'type', 'veth', 'peer', 'name', 'trial2')
linux.unshare(linux.NEWPID)
"""
